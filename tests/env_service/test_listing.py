import pytest

from env_service.listing import check

COUNTER = {"counter": "counter_envs:Counter"}


def asked(split, name="counter", **params):
    return {"env_type": name, "split": split, "params": params}


def test_a_split_that_is_not_there_is_refused_at_its_place():
    (problem,) = check(COUNTER, [asked("dev"), asked("trian")])
    assert problem["refused"] and problem["asked"] == 1 and "unknown split 'trian'" in problem["text"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("", "must be a subclass of env_service.base.BaseEnv"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_and_not_asked(body, text, tmp_path, monkeypatch):
    name = f"mine_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = check({"mine": f"{name}:Mine"}, [asked("train", "mine")])
    assert problem["refused"] and problem["asked"] is None and problem["name"] == "mine"
    assert text in problem["text"] and "\n" not in problem["text"]


def test_what_an_environment_lacks_is_not_the_askers_fault(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text(
        "from counter_envs import Counter\n"
        "class Mine(Counter):\n"
        "    @staticmethod\n"
        "    def get_query_list(split='train', params=None):\n"
        "        if split == 'empty': return []\n"
        "        raise RuntimeError('its data are not installed')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    failed, empty = check({"mine": "lacking:Mine"}, [asked("train", "mine"), asked("empty", "mine")])
    assert not failed["refused"] and "cannot list its split 'train': its data are not installed" in failed["text"]
    assert empty["refused"] and "lists no task in its split 'empty'" in empty["text"]
