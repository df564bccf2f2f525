"""`litellm-compaction check`: budgets to the number, every warning and error in words, one JSON object for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from litellm_compaction.cli.main import main

EXAMPLES = sorted((Path(__file__).parents[2] / "config_examples").glob("*.yaml"))
LOCAL = {"model": "hosted_vllm/mine", "api_base": "http://127.0.0.1:9/v1"}


def model(name: str, own: dict[str, Any] | None = None, params: dict[str, Any] | None = None, **info: Any) -> Any:
    info |= {} if own is None else {"compaction": own}
    return {"model_name": name, "litellm_params": params or LOCAL, "model_info": info}


def check(folder: Path, models: list[Any], *options: str, **sections: Any) -> Result:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"model_list": models, **sections}, sort_keys=False))
    return CliRunner().invoke(main, ["check", str(file), *options])


def rows(folder: Path, models: list[Any], **sections: Any) -> dict[str, dict[str, Any]]:
    """The models of a config without errors, by name."""
    result = check(folder, models, "--json", **sections)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == ["models", "errors"]
    assert found["errors"] == []
    return {row["model"]: row for row in found["models"]}


FOUR: dict[str, tuple[dict[str, int], tuple[int, int]]] = {  # settings, I and T
    "first": ({"context": 500_000, "output": 128_000}, (372_000, 372_000)),
    "second": ({"context": 500_000, "output": 64_000}, (436_000, 425_000)),
    "third": ({"context": 1_050_000, "output": 128_000, "max_input": 922_000}, (922_000, 892_500)),
    "fourth": ({"context": 8_192, "output": 1_234}, (6_958, 6_958)),
}


def test_four_rows_of_the_contract(tmp_path: Path) -> None:
    """To the number, for people and for programs."""
    models = [model(name, own) for name, (own, _) in FOUR.items()]
    found = rows(tmp_path, models)
    shown = check(tmp_path, models).stdout
    for name, (own, (room, threshold)) in FOUR.items():
        assert found[name] == {
            "model": name,
            "context": own["context"],
            "output": own["output"],
            "max_input": own.get("max_input"),
            "input": room,
            "threshold": threshold,
            "source": "settings",
            "warnings": [],
        }
        line = next(line for line in shown.splitlines() if name in line)
        for number in (own["context"], own["output"], room, threshold):
            assert f" {number:,} " in line


def test_third_row_out_of_the_catalogue(tmp_path: Path) -> None:
    """GPT-6.1 Sol: the catalogue's input is the window without the output."""
    row = rows(tmp_path, [model("sol", params={"model": "openai/gpt-6.1-sol"})])["sol"]
    assert [row[key] for key in ("context", "output", "max_input", "input", "threshold", "source")] == [
        1_050_000,
        128_000,
        922_000,
        922_000,
        892_500,
        "catalogue",
    ]


def test_unknown_limits_are_said(tmp_path: Path) -> None:
    """Nulls for programs, and in words what that means."""
    row = rows(tmp_path, [model("mine")])["mine"]
    assert {row[key] for key in ("context", "output", "max_input", "input", "threshold", "source")} == {None}
    assert "no enforcement and no automatic threshold; explicit compaction still works" in row["warnings"][0]
    assert "unknown" in check(tmp_path, [model("mine")]).stdout


def test_smallest_of_a_group_aliases_and_wildcards(tmp_path: Path) -> None:
    """One row a name: the smallest deployment counts, an alias is what it stands for, a wildcard has no numbers."""
    models = [
        model("group", {"context": 100_000, "output": 4_000}),
        model("group", {"context": 50_000, "output": 8_000}),
        model("openai/*", params={"model": "openai/*"}),
    ]
    aliases = {"short": "group", "hidden": {"model": "group", "hidden": True}, "five": "openai/gpt-5"}
    found = rows(tmp_path, models, router_settings={"model_group_alias": aliases})
    assert list(found) == ["group", "openai/*", "short", "hidden", "five"]
    numbers = [found["group"][key] for key in ("context", "output", "input")]
    assert numbers == [50_000, 4_000, 42_000]
    assert [found["hidden"][key] for key in ("context", "output", "input")] == numbers
    assert found["five"]["context"] == 400_000
    assert found["openai/*"]["context"] is None
    assert "wildcard" in found["openai/*"]["warnings"][0]


WARNED: dict[str, tuple[Any, str]] = {
    "huge": (model("m", params={"model": "snowflake/openai-gpt-5-nano"}), "hardly true"),
    "tiny": (model("m", params={"model": "groq/meta-llama/llama-prompt-guard-2-22m"}), "input of 512 tokens, too few"),
    "output-as-large-as-input": (
        model("m", params={"model": "mistral/mistral-large-latest"}),
        "an output of 262144, not less than its window of 262144: not believed, 65536 derived from the window",
    ),
    "output-over-half": (
        model("m", params={"model": "azure/eu/o1-mini-2024-09-12"}),
        "an output of 65536, more than half of its input of 128000",
    ),
    "more-than-other-hosts": (
        model("m", params={"model": "azure_ai/mistral-nemo"}),
        "an input of 131072, other hosts of the same model 95680",
    ),
    "text": (model("m", max_input_tokens="128000", max_output_tokens=8_000), "is text ('128000')"),
    "unit": (model("m", max_input_tokens="128k"), "'128k', which is no number of tokens"),
    "fraction": (model("m", max_input_tokens=0.5), "0.5, which is no number of tokens"),
    "truth": (model("m", max_output_tokens=True), "True, which is no number of tokens"),
    "negative": (model("m", max_output_tokens=-1), "-1, which is no number of tokens"),
    "zero": (model("m", max_input_tokens=0), "0, which is no number of tokens"),
    "ollama": (model("m", params={"model": "ollama/llama3"}), "Ollama runs it with `num_ctx`"),
    "ollama-chat": (
        model("m", params={"model": "ollama_chat/llama3"}, base_model="ollama/llama3"),
        "window of 8192 is what the model was trained with; Ollama runs it with `num_ctx`",
    ),
    "output-unknown": (model("m", {"context": 32_768}), "8192 derived from the window"),
    "threshold-clamped": (
        model("m", {"context": 32_768, "output": 8_192, "threshold": 30_000}),
        "threshold 30000 is over the input budget: 24576 counts",
    ),
    "fraction-clamped": (
        model("m", {"context": 32_768, "output": 8_192, "threshold": 0.9}),
        "threshold 29491 is over the input budget: 24576 counts",
    ),
    "early": (model("m", {"context": 20_000, "output": 1_024}), "compaction begins at 3616, less than half"),
    "early-by-output": (model("m", {"context": 100_000, "output": 70_000}), "70000 tokens of output are kept free"),
    "early-by-operator": (
        model("m", {"context": 100_000, "output": 1_000, "threshold": 0.49}),
        "compaction begins at 49000, less than half of the window: 'threshold' says so",
    ),
    "early-by-a-hair": (
        model("m", {"context": 10_001, "output": 100, "threshold": 5_000}),
        "begins at 5000, less than",
    ),
    "early-by-input": (
        model("m", {"context": 100_000, "output": 1_000, "max_input": 40_000}),
        "compaction begins at 40000, less than half of the window: no more input is taken",
    ),
    "clamped-and-early": (
        model("m", {"context": 100_000, "output": 70_000, "threshold": 0.9}),
        "threshold 90000 is over the input budget: 30000 counts",
    ),
    "auto-without-window": (model("m", {"auto_compact": True}), "auto_compact does nothing without a known window"),
    "summary-model": (
        model("m", {"context": 9_000, "output": 99, "summary_model": "gone"}),
        "summary_model 'gone' is no model of this config",
    ),
}


@pytest.mark.parametrize(("entry", "words"), WARNED.values(), ids=WARNED)
def test_warnings(tmp_path: Path, entry: Any, words: str) -> None:
    """What looks wrong is said once, with the number, and is no error."""
    warnings = rows(tmp_path, [entry])["m"]["warnings"]
    assert [words in warning for warning in warnings].count(True) == 1, warnings
    shown = " ".join(check(tmp_path, [entry]).stdout.split())
    assert shown.count(words) == 1


def test_summaries_may_be_written_by_aliases_and_wildcards(tmp_path: Path) -> None:
    """A summary_model that is no model_name but is served all the same is not warned of."""
    own = {"context": 9_000, "output": 99}
    models = [
        model("by-alias", {**own, "summary_model": "short"}),
        model("by-wildcard", {**own, "summary_model": "openai/gpt-5"}),
        model("openai/*", params={"model": "openai/*"}),
    ]
    found = rows(tmp_path, models, router_settings={"model_group_alias": {"short": "by-wildcard"}})
    assert [found[name]["warnings"] for name in ("by-alias", "by-wildcard")] == [[], []]


def test_half_of_the_window_is_not_early(tmp_path: Path) -> None:
    """Whoever says so: the rule, or the operator."""
    for own in ({"threshold": 50_000}, {"threshold": 0.5}, {"output": 50_000}):
        limits = {"context": 100_000, "output": 1_000, **own}
        assert rows(tmp_path, [model("m", limits)])["m"]["warnings"] == []


def test_threshold_of_one_deployment_is_not_clamped_by_another(tmp_path: Path) -> None:
    """The smallest of a group counts; only what is over the input budget is warned of."""
    own = {"context": 100_000, "output": 1_000}
    models = [model("m", {**own, "threshold": 80_000}), model("m", {**own, "threshold": 60_000})]
    row = rows(tmp_path, models)["m"]
    assert (row["threshold"], row["warnings"]) == (60_000, [])


def test_names_that_the_proxy_rewrites(tmp_path: Path) -> None:
    """`model_alias_map` names what a client may send, before a model or alias of that name; the router, which is asked
    for summaries, does not know it."""
    models = [
        model("large", {"context": 50_000, "output": 2_000}),
        model("both", {"context": 9_000, "output": 99, "summary_model": "sent"}),
    ]
    found = rows(
        tmp_path,
        models,
        litellm_settings={"model_alias_map": {"sent": "short", "both": "large"}},
        router_settings={"model_group_alias": {"short": "large"}},
    )
    assert {name: row["context"] for name, row in found.items()} == dict.fromkeys(
        ("large", "both", "sent", "short"), 50_000
    )
    routed = rows(tmp_path, models, litellm_settings={"model_alias_map": {"sent": "large"}})["both"]
    assert routed["warnings"] == ["summary_model 'sent' is no model of this config"]


def test_output_that_is_not_believed_is_one_warning(tmp_path: Path) -> None:
    """What the catalogue says and what is derived instead stand in one sentence, not in two."""
    warnings = rows(tmp_path, [model("m", params={"model": "mistral/mistral-large-latest"})])["m"]["warnings"]
    assert ["output" in warning for warning in warnings].count(True) == 1, warnings


def test_warnings_of_all_deployments_are_told_once(tmp_path: Path) -> None:
    """Those of the second deployment too, and the same one of both only once."""
    models = [
        model("group", {"context": 32_768}),
        model("group", {"context": 32_768}),
        model("group", {"context": 65_536}, max_output_tokens="128k"),
    ]
    warnings = rows(tmp_path, models)["group"]["warnings"]
    assert [next(word for word in ("8192", "16384", "128k") if word in warning) for warning in warnings] == [
        "8192",
        "128k",
        "16384",
    ]


def test_input_limit_of_a_group_is_one_that_counts(tmp_path: Path) -> None:
    """`max_input` is null where no deployment has one and the window leaves no less; else the smallest."""
    plain, limited = {"context": 100_000, "output": 4_000}, {"context": 100_000, "output": 4_000, "max_input": 50_000}
    models = [model("same", plain), model("same", plain), model("one", plain), model("one", limited)]
    found = rows(tmp_path, models)
    assert [(found[name]["max_input"], found[name]["input"]) for name in ("same", "one")] == [
        (None, 96_000),
        (50_000, 50_000),
    ]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Brackets are no markup, and a long name is not cut."""
    long = "x" * 60
    shown = check(tmp_path, [model("a[/b]"), model("[red]c"), model(long, {"context": 9_000, "output": 99})]).stdout
    for name in ("a[/b]", "[red]c"):
        assert f"│ {name} " in shown
        assert f"warning {name}: limits unknown" in shown
    table = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert long in table


def test_what_the_operator_says_silences_the_catalogue(tmp_path: Path) -> None:
    """A number of the catalogue that is not used is not warned of."""
    own = {"context": 262_144, "output": 8_000}
    for params in ({"model": "mistral/mistral-large-latest"}, {"model": "ollama/llama3"}):
        limits = own if "mistral" in params["model"] else {"context": 8_000, "output": 800}
        assert rows(tmp_path, [model("m", limits, params)])["m"]["warnings"] == []
    half = {"model": "azure/eu/o1-mini-2024-09-12"}
    assert rows(tmp_path, [model("m", {"output": 8_000}, half)])["m"]["warnings"] == []


def test_wildcard_with_a_window_has_no_number_yet(tmp_path: Path) -> None:
    """The model it will be asked for may be known to the catalogue: nothing is derived for the star."""
    star = model("hosted_vllm/*", {"context": 32_768}, {"model": "hosted_vllm/*", "api_base": "http://127.0.0.1:9/v1"})
    (warning,) = rows(tmp_path, [star])["hosted_vllm/*"]["warnings"]
    assert warning.startswith("a wildcard")


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "unknown-key": (model("m", {"contxt": 1}), ("contxt", "unknown setting")),
    "output-over-window": (model("m", {"context": 100, "output": 100}), ("output", "100")),
    "over-the-catalogues-window": (
        model("m", {"context": 500_000}, {"model": "openai/gpt-5"}),
        ("context", "500000", "400000", "'m'"),
    ),
    "over-the-output-limit": (
        model("m", {"output": 200_000}, {"model": "openai/gpt-5"}),
        ("output", "200000", "128000"),
    ),
    "threshold-over-window": (model("m", {"threshold": 9_000}, max_input_tokens=8_000), ("threshold", "9000", "8000")),
    "no-integer": (model("m", {"context": "128k"}), ("context", "128k")),
}


@pytest.mark.parametrize(("entry", "words"), REFUSED.values(), ids=REFUSED)
def test_impossible_numbers_are_errors(tmp_path: Path, entry: Any, words: tuple[str, ...]) -> None:
    """Exit 1, the key, the value and the bound named; the other models are still listed."""
    models = [entry, model("fine", {"context": 8_192, "output": 1_234})]
    found = check(tmp_path, models, "--json")
    assert found.exit_code == 1
    report = json.loads(found.stdout)
    assert [row["model"] for row in report["models"]] == ["fine"]
    assert len(report["errors"]) == 1
    assert all(word in report["errors"][0] for word in words), report["errors"]
    people = check(tmp_path, models)
    assert people.exit_code == 1
    assert words[0] in people.stderr


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "no-name": ({"litellm_params": LOCAL}, "no 'model_name'"),
    "name-of-another-kind": ({"model_name": 5, "litellm_params": LOCAL}, "model_name 5 is no text"),
    "no-params": ({"model_name": "m"}, "model 'm': 'litellm_params' is no mapping with a 'model'"),
    "params-of-another-kind": ({"model_name": "m", "litellm_params": "x"}, "'litellm_params' is no mapping"),
    "params-without-model": ({"model_name": "m", "litellm_params": {"api_key": "k"}}, "with a 'model'"),
    "info-of-another-kind": (
        {"model_name": "m", "litellm_params": LOCAL, "model_info": "x"},
        "model 'm': 'model_info' is no mapping",
    ),
}


@pytest.mark.parametrize(("entry", "words"), MALFORMED.values(), ids=MALFORMED)
def test_entries_that_are_no_deployments(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    """What LiteLLM stops at is one error, and the other models are still listed."""
    result = check(tmp_path, [entry, model("fine", {"context": 8_192, "output": 1_234})], "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, [row["model"] for row in report["models"]]) == (1, ["fine"])
    assert len(report["errors"]) == 1
    assert words in report["errors"][0]


def test_alias_of_nothing_is_an_error(tmp_path: Path) -> None:
    """An alias that no model stands behind is named."""
    aliases = {"model_group_alias": {"short": "gone"}}
    result = check(tmp_path, [model("mine")], router_settings=aliases)
    assert result.exit_code == 1
    assert "'short' is an alias of a model that is not in the list" in result.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nothing_is_contacted(tmp_path: Path, options: list[str]) -> None:
    """In a fresh process, where LiteLLM would fetch its price map when imported: no connection is tried."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"model_list": [model("five", params={"model": "openai/gpt-5"})]}))
    script = (
        "import sys\n"
        "def watch(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo'):\n"
        "        print('CONTACTED', args, file=sys.stderr)\n"
        "sys.addaudithook(watch)\n"
        "from litellm_compaction.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    bare = {name: value for name, value in os.environ.items() if name != "LITELLM_LOCAL_MODEL_COST_MAP"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script, "check", str(config), *options],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "400000" in done.stdout.replace(",", "")


def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    """Of every model, every key of a section, and every number that the model cannot have, each once."""
    models = [
        model("a", {"x": 1, "max_attempts": 99, "keys": ["k"]}),
        model("b", {"y": 1}),
        model("c", {"context": 500_000, "output": 200_000}, {"model": "openai/gpt-5"}),
        model("d", {"context": 100, "output": 100}),
    ]
    errors = json.loads(check(tmp_path, models, "--json").stdout)["errors"]
    expected = (
        ("'a'.x",),
        ("'a'.max_attempts", "99"),
        ("'a'", "'keys'"),
        ("'b'.y",),
        ("context", "'c'", "500000", "400000"),
        ("output", "'c'", "200000", "128000"),
        ("'d'.output", "100"),
    )
    assert len(errors) == len(expected)
    for error, words in zip(errors, expected, strict=True):
        assert all(word in error for word in words), error


def test_errors_of_all_models_hide_none_of_one(tmp_path: Path) -> None:
    """Both are told; no model has numbers, which would be without those settings."""
    own = {"litellm_compaction": {"bind": "nobody", "trim_fraction": 4}}
    result = check(tmp_path, [model("a", {"x": 1}), model("fine")], "--json", callback_settings=own)
    report = json.loads(result.stdout)
    assert (result.exit_code, report["models"]) == (1, [])
    assert [error.split(":")[0] for error in report["errors"]] == [
        "callback_settings.litellm_compaction.bind",
        "callback_settings.litellm_compaction.trim_fraction",
        "model_info.compaction of 'a'.x",
    ]


def test_settings_together_wrong_are_one_error(tmp_path: Path) -> None:
    """A model's output and the window of all models: each is right alone."""
    own = {"litellm_compaction": {"context": 1_000}}
    report = json.loads(check(tmp_path, [model("a", {"output": 1_000})], "--json", callback_settings=own).stdout)
    assert len(report["errors"]) == 1
    assert "output: 1000 is not allowed: allowed is less than 'context' (1000)" in report["errors"][0]


def test_a_model_behind_an_alias_of_its_name_is_checked(tmp_path: Path) -> None:
    """The proxy refuses to start with its settings, whoever can reach it."""
    aliases = {"model_group_alias": {"hidden": "fine"}}
    models = [model("hidden", {"x": 1}), model("fine", {"context": 9_000, "output": 99})]
    report = json.loads(check(tmp_path, models, "--json", router_settings=aliases).stdout)
    assert [row["context"] for row in report["models"]] == [9_000, 9_000]
    assert ["'hidden'.x" in error for error in report["errors"]] == [True]


@pytest.mark.parametrize("key", ["keys", "instructions"])
def test_environment_that_is_not_set(tmp_path: Path, key: str) -> None:
    """A secret may be on the proxy's machine only; any other setting has to be known."""
    value = "os.environ/SET_NOWHERE"
    own = {"litellm_compaction": {key: [value] if key == "keys" else value}}
    secret = {"model": "openai/gpt-5", "api_key": value}
    result = check(tmp_path, [model("five", params=secret)], callback_settings=own)
    assert result.exit_code == (0 if key == "keys" else 1), result.output
    assert ("'SET_NOWHERE' is not set" in result.stderr) == (key != "keys")


BROKEN: dict[str, tuple[str | None, str]] = {
    "missing-file": (None, "cannot be read"),
    "no-yaml": ("a: [", "cannot be read as YAML"),
    "no-mapping": ("- 1", "no mapping"),
    "no-models": ("litellm_settings: {}", "model_list"),
    "models-of-another-kind": ("model_list: [1]", "model_list"),
    "global-settings": ("model_list: []\ncallback_settings: {litellm_compaction: {nonsense: 1}}", "nonsense"),
    "include-missing": ("model_list: []\ninclude: [gone.yaml]", "gone.yaml"),
}


@pytest.mark.parametrize(("text", "words"), BROKEN.values(), ids=BROKEN)
def test_configs_that_cannot_be_read(tmp_path: Path, text: str | None, words: str) -> None:
    """One sentence and exit 1, no traceback; the same as JSON."""
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    people = CliRunner().invoke(main, ["check", str(file)])
    assert people.exit_code == 1
    assert words in people.stderr
    assert "Traceback" not in people.output
    programs = CliRunner().invoke(main, ["check", str(file), "--json"])
    report = json.loads(programs.stdout)
    assert report["models"] == []
    assert words in report["errors"][0]


def test_included_files_count(tmp_path: Path) -> None:
    """LiteLLM's `include` adds models."""
    (tmp_path / "more.yaml").write_text(yaml.safe_dump({"model_list": [model("more", {"context": 900, "output": 9})]}))
    assert list(rows(tmp_path, [model("one")], include=["more.yaml"])) == ["one", "more"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_sound(example: Path) -> None:
    """Every config of config_examples passes, also where its secrets are not set."""
    result = CliRunner().invoke(main, ["check", str(example)], env={"COMPACTION_KEY": None})
    assert result.exit_code == 0, result.output
