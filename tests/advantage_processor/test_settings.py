import pytest
from pydantic import ValidationError

from advantage_processor import AttributionSettings
from advantage_processor.pipeline import adca_config


def test_presets_fill_what_is_left_open():
    assert adca_config(AttributionSettings(adca_grpo={"preset": "paper"})).sigma == "means"
    assert adca_config(AttributionSettings(adca_grpo={"preset": "paper"})).sigma_floor == 0.5
    unstandardised = {"preset": "paper", "do_batch_norm": False}
    assert adca_config(AttributionSettings(adca_grpo=unstandardised)).base == 1.0
    assert adca_config(AttributionSettings(adca_grpo={**unstandardised, "fix_base": 0.5})).base == 0.5


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"consistent_scale": 0.7}, "consistent_scale = 0.7 would have no effect: prm_scheme is decouple"),
        ({"adca_grpo": {"fix_base": 0.7}}, "fix_base = 0.7 would have no effect: do_batch_norm"),
        ({"adca_grpo": {"prm_scheme": "allocation", "orm_distribution": "only_prm"}}, "needs prm_scheme = decouple"),
        ({"attributor": "gigpo", "model": "qwen-max"}, "model = 'qwen-max' would have no effect: attributor gigpo"),
    ],
)
def test_what_would_do_nothing_or_is_not_known_is_refused_by_name(section, named):
    with pytest.raises(ValidationError, match=named.replace("(", r"\(")):
        AttributionSettings.model_validate(section)
