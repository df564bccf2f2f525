"""The operator's settings per model group, the keys, and who compacts for a group."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import litellm
import pytest

from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing, open_item, seal_payload
from litellm_compaction.errors import SettingsError, UnreadableItem
from litellm_compaction.gateway.operator import Operator, resolve_mode
from litellm_compaction.settings import Settings

OPENAI = {"model": "openai/gpt-5", "api_key": "k"}


def make(**values: Any) -> Settings:
    """Settings with some values of their own."""
    return Settings.model_validate(values)


class FakeRouter:
    """Deployments by group and team."""

    def __init__(self, **groups: list[dict[str, Any]]) -> None:
        self.groups = groups

    def get_model_list(self, model_name: str, team_id: str | None = None) -> list[dict[str, Any]] | None:
        return self.groups.get(f"{model_name}_{team_id}") or self.groups.get(model_name)


def deployment(settings: object = None, **params: Any) -> dict[str, Any]:
    return {"litellm_params": params, "model_info": {"compaction": settings} if settings is not None else {}}


def resolve(operator: Operator, router: FakeRouter | None, group: str = "m", team: str | None = None) -> Any:
    return operator.resolve(cast("Any", router), group, team)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address or secret of the machine that runs the tests."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "LITELLM_SALT_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(litellm, "api_base", None)


MODES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "openai": ([OPENAI], "native"),
    "openai-by-name": ([{"model": "gpt-4o", "api_key": "k"}], "native"),
    "openai-by-provider": ([{"model": "x", "custom_llm_provider": "openai", "api_key": "k"}], "native"),
    "openai-with-base": ([{**OPENAI, "api_base": "https://api.openai.com/v1"}], "native"),
    "openai-host-in-capitals": ([{**OPENAI, "api_base": "https://API.OpenAI.com/v1"}], "native"),
    "two-with-one-key": ([OPENAI, {**OPENAI, "model": "openai/gpt-5-mini"}], "native"),
    "two-with-two-keys": ([OPENAI, {**OPENAI, "api_key": "other"}], "own"),
    "openai-and-another": ([OPENAI, {"model": "anthropic/claude", "api_key": "k"}], "own"),
    "other-provider": ([{"model": "anthropic/claude", "api_key": "k"}], "own"),
    "unknown-model": ([{"model": "some-name", "api_key": "k"}], "own"),
    "other-base": ([{**OPENAI, "api_base": "http://localhost:8000/v1"}], "own"),
    "other-base_url": ([{**OPENAI, "base_url": "http://localhost:8000/v1"}], "own"),
    "look-alike": ([{**OPENAI, "api_base": "https://api.openai.com.evil.example/v1"}], "own"),
    "look-alike-user": ([{**OPENAI, "api_base": "https://api.openai.com@evil.example/v1"}], "own"),
    "bridged": ([{**OPENAI, "use_chat_completions_api": True}], "own"),
    "no-deployment": ([], "own"),
}


@pytest.mark.parametrize(("params", "mode"), MODES.values(), ids=MODES)
def test_auto_mode(params: list[dict[str, Any]], mode: str) -> None:
    """Native only where every deployment is api.openai.com with one and the same key."""
    assert resolve_mode(make(), params) == mode
    assert resolve_mode(make(mode="own"), params) == "own"
    assert resolve_mode(make(mode="native"), params) == "native"


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_openai_address_of_the_environment_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that LiteLLM would take from the environment is not OpenAI's own."""
    monkeypatch.setenv(name, "http://localhost:8000/v1")
    assert resolve_mode(make(), [OPENAI]) == "own"
    assert resolve_mode(make(), [{**OPENAI, "api_base": "https://api.openai.com/v1"}]) == "native"


def test_openai_address_of_litellm_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is LiteLLM's global address."""
    monkeypatch.setattr(litellm, "api_base", "http://localhost:8000/v1")
    assert resolve_mode(make(), [OPENAI]) == "own"


def test_settings_of_a_group_win() -> None:
    """The first deployment with settings speaks for its group, the others have the global ones."""
    operator = Operator({"max_attempts": 2}, {})
    router = FakeRouter(
        m=[deployment(**OPENAI), deployment({"bind": "key", "mode": "own"}, **OPENAI)], n=[deployment()]
    )
    settings, mode = resolve(operator, router)
    assert (settings.max_attempts, settings.bind, mode) == (2, "key", "own")
    assert resolve(operator, router, "n") == (operator.settings, "own")
    assert resolve(operator, router, "unknown") == (operator.settings, "own")
    assert resolve(operator, None) == (operator.settings, "own")


def test_settings_of_a_teams_own_deployment() -> None:
    """A team's own deployment is found by the team."""
    operator = Operator(None, {})
    router = FakeRouter(m=[deployment()], m_red=[deployment({"max_attempts": 1})])
    assert resolve(operator, router, team="red")[0].max_attempts == 1
    assert resolve(operator, router, team="blue")[0].max_attempts == 3


def test_changed_settings_of_a_group_take_effect() -> None:
    """A model updated at runtime is read again."""
    operator = Operator(None, {})
    assert resolve(operator, FakeRouter(m=[deployment({"max_attempts": 1})]))[0].max_attempts == 1
    assert resolve(operator, FakeRouter(m=[deployment({"max_attempts": 2})]))[0].max_attempts == 2


@pytest.mark.parametrize(
    ("values", "config"),
    [
        ({"mode": "x"}, {}),
        (None, {"model_list": [{"model_name": "m", "model_info": {"compaction": {"mode": "x"}}}]}),
    ],
    ids=["global", "model"],
)
def test_wrong_settings_stop_the_proxy(values: object, config: dict[str, Any]) -> None:
    """A value that cannot be used is refused when the proxy starts, also one of a model."""
    with pytest.raises(SettingsError, match="mode: 'x' is not allowed"):
        Operator(values, config)


@pytest.mark.parametrize("config", [{}, {"model_list": None}, {"model_list": ["text", {"model_name": "m"}]}])
def test_config_without_settings_is_fine(config: dict[str, Any]) -> None:
    """A config that says nothing gives the defaults."""
    assert Operator(None, config).settings == make()


def test_unsealed_items_are_taken_once_one_group_writes_them() -> None:
    """An item is portable: what one group writes readable, every group has to read."""
    model = {"model_name": "m", "model_info": {"compaction": {"seal": False}}}
    assert not Operator(None, {}).allows_unsealed
    assert Operator({"seal": False}, {}).allows_unsealed
    assert Operator(None, {"model_list": [model]}).allows_unsealed


def sealed(ring: KeyRing) -> dict[str, Any]:
    payload = Payload(origin="trigger", summary="s")
    return {"encrypted_content": seal_payload(payload, ring, Caller(), "none", bytes)}


def test_own_keys_are_used() -> None:
    """The operator's keys: the first seals, all open."""
    ring = Operator({"keys": ["new", "old"]}, {}).ring
    assert open_item(sealed(KeyRing(["old"])), ring, None).summary == "s"
    assert open_item(sealed(ring), KeyRing(["new"]), None).summary == "s"


def test_salt_key_is_the_default_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys of its own the plugin derives them from LiteLLM's salt key."""
    monkeypatch.setenv("LITELLM_SALT_KEY", "salt")
    operator = Operator(None, {})
    assert open_item(sealed(operator.ring), KeyRing(["salt"]), None).summary == "s"
    monkeypatch.setenv("LITELLM_SALT_KEY", "pepper")
    assert operator.ring is operator.ring
    with pytest.raises(UnreadableItem):
        open_item(sealed(operator.ring), Operator(None, {}).ring, None)


def set_master_key(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """Put a proxy with this master key into the process; importing the real one takes ten seconds."""
    proxy = ModuleType("litellm.proxy.proxy_server")
    monkeypatch.setattr(proxy, "master_key", key, raising=False)
    monkeypatch.setitem(sys.modules, proxy.__name__, proxy)


def test_master_key_stands_in_for_the_salt_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a salt key it is the master key, read at the first use."""
    operator = Operator(None, {})
    set_master_key(monkeypatch, "sk-master")
    assert open_item(sealed(operator.ring), KeyRing(["sk-master"]), None).summary == "s"


@pytest.mark.parametrize(
    ("settings", "general", "warned"),
    [({}, {}, True), ({}, {"master_key": "sk-1"}, False), ({"keys": ["k"]}, {}, False), ({"seal": False}, {}, False)],
    ids=["no-secret", "master-key", "keys", "unsealed"],
)
def test_proxy_without_a_secret_is_warned_at_its_start(
    settings: dict[str, Any],
    general: dict[str, Any],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With no secret at all items still work, and the log says at the start what they are worth."""
    set_master_key(monkeypatch, None)
    monkeypatch.setattr(litellm, "callback_settings", {"litellm_compaction": settings})
    monkeypatch.setattr(
        sys.modules["litellm.proxy.proxy_server"],
        "proxy_config",
        SimpleNamespace(get_config_state=lambda: {"general_settings": general}),
        raising=False,
    )
    with caplog.at_level(logging.WARNING):
        operator = Operator.from_litellm()
    assert ("not against reading" in caplog.text) == warned
    assert open_item(sealed(operator.ring), operator.ring, None).summary == "s"


def test_two_deployments_of_one_name_keep_their_own_settings() -> None:
    """One is not taken for the other, whichever was asked for last; the first with settings speaks for the group."""
    first = {"model_name": "m", "litellm_params": {}, "model_info": {"compaction": {"context": 9_000}}}
    second = {"model_name": "m", "litellm_params": {}, "model_info": {"compaction": {"context": 8_000}}}
    operator = Operator({"output": 100}, {"model_list": [first, second]})
    for _ in range(2):
        assert [operator.settings_of(one).context for one in (first, second)] == [9_000, 8_000]
    assert operator.settings_of(first) is operator.settings_of(first)
    assert operator.settings_of(second).output == 100
    assert operator.settings_of({"model_name": "m"}) is operator.settings
    settings, _ = resolve(operator, FakeRouter(m=[second, first]))
    assert settings.context == 8_000


def test_numbers_over_the_models_own_stop_the_proxy() -> None:
    """Global ones and those of a model, as soon as LiteLLM has read the config."""
    model = {"model_name": "m", "litellm_params": {"model": "openai/gpt-5"}}
    with pytest.raises(SettingsError, match="context of model 'm': 500000 is not allowed"):
        Operator({"context": 500_000}, {"model_list": [model]})
    own = {**model, "model_info": {"compaction": {"output": 200_000}}}
    with pytest.raises(SettingsError, match="output of model 'm': 200000 is not allowed"):
        Operator({}, {"model_list": [own]})
