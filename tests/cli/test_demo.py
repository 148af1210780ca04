"""What ``minipic demo`` says while it works."""

from minipic_cli import demo
from minipic_cli.lookups import orders, passages
from minipic_cli.scoring import Said
from minipic_sdk import MiniPIC
from minipic_sdk.testing import FakeServer


def test_scoring_says_how_far_it_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr("minipic_cli.console.SECONDS_A_LINE", 0.0)
    # Nothing likely is ever said: each token is asked for by itself.
    said = lambda probe: [Said(0, {})] if probe.only is None else [Said(probe.only, {probe.only: -1.0})]
    monkeypatch.setattr(demo, "_complete", lambda url, model, probes, extra: [said(p) for p in probes])
    client = MiniPIC(http_client=FakeServer().http_client())
    found = demo._answers(client.base_url, client, orders(list(passages()), 3), 6)
    assert found == {"items": 6, "plain_logprob": -1.0, "minipic_logprob": -1.0, "gap": 0.0}
    what = "scoring 6 true answers, plain and with spans"
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[1], lines[-1]) == (what, f"{what}: 0 of 12", f"{what}: 12 of 12")
