"""At the end of a run of tests: what the trials with a lost master have measured."""

import statistics


def pytest_terminal_summary(terminalreporter):
    properties = [item for report in terminalreporter.getreports("passed") for item in report.user_properties]
    kills = sum(value for name, value in properties if name == "master kills")
    waited = sorted(one * 1e3 for name, value in properties if name == "seconds to the next success" for one in value)
    if len(waited) < 2:
        return
    p95 = statistics.quantiles(waited, n=20, method="inclusive")[-1]
    terminalreporter.write_line(
        f"{kills} kills of a master; {len(waited)} of them until the next success of votes, syncs and large ops on all peers: "
        f"median {statistics.median(waited):.0f} ms, p95 {p95:.0f} ms, at most {waited[-1]:.0f} ms"
    )
