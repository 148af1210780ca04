"""`minipic bench sdk`: a run on tiny sizes measures all that the issue asks about, and keeps the other rows."""

import json

ROWS = {
    "sdk_request_overhead",
    "sdk_import",
    "sdk_import_used",
    "sdk_warm_files",
    "sdk_warm_file",
    "sdk_warm_jsonl",
    "sdk_warm_memory",
}


def test_a_small_run(run, tmp_path) -> None:
    out = tmp_path / "results" / "sdk.json"
    out.parent.mkdir()
    out.write_text(json.dumps({"rows": [{"name": "another", "value": 1}, {"name": "sdk_import", "value": -1}]}))
    done = run("bench", "sdk", "--small", "--repetitions", "1", "--out", out, "--json")
    assert done.code == 0, done.err
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows.keys() == ROWS | {"another"}
    assert json.loads(done.out)["rows"] == [row for name, row in rows.items() if name != "another"]
    for name in ROWS:
        row = rows[name]
        assert row["value"] > 0
        assert row["baseline"] > 0
        assert row["spread"][0] <= row["ratio"] <= row["spread"][1]
        assert row.keys() >= {"unit", "repetitions", "load", "machine", "versions", "date", "command", "goal"}
    assert (rows["sdk_warm_file"]["documents"], rows["sdk_warm_file"]["chunks"] > 10) == (1, True)
    assert rows["sdk_warm_files"]["documents"] == 2
    assert rows["sdk_warm_jsonl"]["documents"] > 30


def test_a_failing_measurement_is_one_line(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("minipic_cli.bench.sdk.HEAVY", ("httpx",))
    done = run("bench", "sdk", "--small", "--repetitions", "1", "--out", tmp_path / "sdk.json")
    assert done.code == 1
    assert "MiniPIC()` loads httpx" in done.err.strip().splitlines()[-1]
    kept = json.loads((tmp_path / "sdk.json").read_text())["rows"]
    assert [row["name"] for row in kept] == ["sdk_request_overhead", "sdk_import"]
