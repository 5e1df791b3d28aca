import math


def mean(values):
    return sum(values) / len(values)


def population_deviation(values):
    centre = mean(values)
    return math.sqrt(mean([(value - centre) ** 2 for value in values]))


def is_spread(deviation, values):
    return deviation > 1e-8 * max(abs(value) for value in values)


def raw_scores(scores, outcome, config):
    if config.scheme == "decouple":
        return [config.base * score for score in scores]
    success = outcome > config.success_threshold
    weights = []
    for score in scores:
        if (score > 0) == success:
            weights.append(config.consistent_scale)
        else:
            weights.append(config.pos_unconsistent_scale if success else abs(config.neg_unconsistent_scale))
    total = sum(weights)
    if total <= 1e-8:
        return [0.0 for _ in scores]
    return [(1 if success else -1) * weight / total for weight in weights]


def standardised(group, config):
    """Return the standardised scores of the labelled trajectories of one group (a list of lists)."""
    every = [x for row in group for x in row]
    if config.statistics == "pooled":
        centre, deviation = mean(every), population_deviation(every)
    else:
        centre = mean([mean(row) for row in group])
        if config.sigma == "means":
            deviation = max(
                population_deviation([mean(row) for row in group]), config.sigma_floor * max(abs(x) for x in every)
            )
        else:
            deviation = math.sqrt(mean([mean([(x - centre) ** 2 for x in row]) for row in group]))
    spread = is_spread(deviation, every)
    return [[(x - centre) / deviation if spread else 0.0 for x in row] for row in group]


def adca(trajectories, config, alpha):
    """Return the advantages of each trajectory's steps; trajectories are dicts: scores, outcome, group, labelled,
    valid."""
    rewards = [[0.0] * len(t["scores"]) for t in trajectories]
    for group in {t["group"] for t in trajectories}:
        valid = [i for i, t in enumerate(trajectories) if t["group"] == group and t["valid"]]
        labelled = [i for i in valid if trajectories[i]["labelled"]]
        z = {i: raw_scores(trajectories[i]["scores"], trajectories[i]["outcome"], config) for i in labelled}
        if config.standardise and z:
            z = dict(zip(labelled, standardised([z[i] for i in labelled], config), strict=True))
        outcomes = [trajectories[i]["outcome"] for i in valid]
        for i in valid:
            deviation = population_deviation(outcomes)
            o = (trajectories[i]["outcome"] - mean(outcomes)) / deviation if is_spread(deviation, outcomes) else 0.0
            count = len(trajectories[i]["scores"])
            for j in range(count):
                attribution = z[i][j] if i in z else 0.0
                here = config.outcome == "all_steps" or (config.outcome == "last_step" and j == count - 1)
                reward = attribution if config.outcome == "only_prm" else alpha * attribution + (o if here else 0.0)
                rewards[i][j] = reward / math.sqrt(count) if config.length_normalisation else reward
    return [[sum(row[j:]) for j in range(len(row))] for row in rewards]


def grpo(outcomes, groups, valid):
    advantages = []
    for outcome, group, counts in zip(outcomes, groups, valid, strict=True):
        others = [o for o, g, v in zip(outcomes, groups, valid, strict=True) if g == group and v]
        if not counts:
            advantages.append(0.0)
        elif len(others) == 1:
            advantages.append(outcome / (1 + 1e-6))
        else:
            centre = mean(others)
            deviation = math.sqrt(sum((o - centre) ** 2 for o in others) / (len(others) - 1))
            advantages.append((outcome - centre) / (deviation + 1e-6))
    return advantages


def gigpo(trajectories, gamma):
    """Return each step's standardised discounted return among the steps with the same (group, state)."""
    returns = {}
    for i, t in enumerate(trajectories):
        for j in range(len(t["states"])):
            returns[i, j] = sum(gamma ** (k - j) * t["rewards"][k] for k in range(j, len(t["rewards"])))
    table = [[0.0] * len(t["states"]) for t in trajectories]
    for i, t in enumerate(trajectories):
        for j, state in enumerate(t["states"]):
            if not t["valid"]:
                continue
            same = [
                returns[m, n]
                for m, other in enumerate(trajectories)
                for n, there in enumerate(other["states"])
                if other["valid"] and other["group"] == t["group"] and there == state
            ]
            if len(same) > 1:
                deviation = math.sqrt(sum((r - mean(same)) ** 2 for r in same) / (len(same) - 1))
                table[i][j] = (returns[i, j] - mean(same)) / (deviation + 1e-6)
    return table
