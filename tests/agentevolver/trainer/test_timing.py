def test_the_methods_that_are_timed_are_those_of_verls_loop():
    import inspect

    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from agentevolver.trainer.timing import PART_OF, PHASE_OF, PHASES

    loop = "".join(
        inspect.getsource(part) for part in (PPOTrainerSync.fit, PPOTrainerSync.step, PPOTrainerSync._step_once)
    )
    loop += inspect.getsource(PPOTrainerSync._setup)
    for method in (*PHASE_OF, *PART_OF, "_compute_metrics", "_init_resource_pool_mgr"):
        assert f"self.{method}(" in loop, f"verl's loop does not call {method} any more"
    timers = {line.split('marked_timer("')[1].split('"')[0] for line in loop.splitlines() if 'marked_timer("' in line}
    assert timers - {"step", "testing"} <= set(PHASES), "a timer of verl's that is counted in no phase"
