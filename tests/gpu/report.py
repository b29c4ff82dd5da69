#!/usr/bin/env python3
"""Collects the logs of tests/gpu/run.sh in report.json, and prints a summary of at most sixty lines.

    report.py CALL LOGS REPORT.json           adds the logs of a call to the report
    report.py --merge OUT.json REPORT.json... merges the reports of several calls
"""

import collections
import csv
import datetime
import json
import re
import sys
from pathlib import Path

MAX_LINES = 60
# Maximum number of failure reasons to print for each phase.
MAX_REASONS = 3
SANITIZERS = ["memcheck", "memcheck-models", "racecheck", "initcheck", "synccheck"]
COUNTERS = {
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "tensor_percent": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}


def text(path):
    return path.read_text(errors="replace") if path.exists() else ""


def json_of(path):
    """Returns the JSON of a file, or None if a phase did not finish the file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def json_lines(log):
    """Yields the JSON objects among the lines of a log."""
    for line in log.splitlines():
        if line.startswith("{") and line.endswith("}"):
            yield json.loads(line)


def probed(log):
    """Returns name, driver and clocks of the GPU, the toolkit, and the device as the engine reports it."""
    found = {}
    rows = list(csv.reader(log.splitlines()))
    for names, values in zip(rows, rows[1:]):
        if names and names[0] == "name":
            found = {name.strip().split(" ")[0]: value.strip() for name, value in zip(names, values)}
    toolkit = re.search(r"cuda_(\d+\.\d+)", log)
    device = re.search(r"^(cuda0\b|unavailable: cuda\b).*", log, re.MULTILINE)
    return found | {"toolkit": toolkit and toolkit[1], "device": device and device[0]}


def fixtures(log):
    """Returns the verdicts of `llama arch check`, sorted because several processes write the log concurrently."""
    verdicts = sorted(re.findall(r"^(\S+) +(\S+) (ok|FAIL)\b ?(.*)$", log, re.MULTILINE))
    failed = [{"name": name, "nmse": nmse, "reason": reason} for name, nmse, verdict, reason in verdicts if verdict == "FAIL"]
    return {"passed": len(verdicts) - len(failed), "failed": failed}


def tests(log):
    """Returns the results of Rust test programs, including programs that did not finish."""
    passed = len(re.findall(r"^test \S+ \.\.\. ok$", log, re.MULTILINE))
    names = sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", log, re.MULTILINE)))
    reasons = re.findall(r"panicked at [^\n]*:\n([^\n]*)", log)
    return {"passed": passed, "failed": len(names), "names": names, "reasons": reasons[:40]}


def reason(log):
    """Returns the line of a failed phase's log that explains the failure best, or an empty string."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for mark in (r"^error\b", r"panicked at|CUDA_ERROR|\berror\b", ""):
        found = [line for line in lines if re.search(mark, line, re.IGNORECASE)]
        if found:
            return found[-1]
    return ""


def sanitizer(log):
    errors = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", log)
    first = [line.removeprefix("========= ") for line in log.splitlines() if line.startswith("========= ")]
    interesting = [line for line in first if not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY"))]
    return {"errors": errors and int(errors[1] or errors[2]), "first": interesting[:6]}


def benchmarks(path):
    """Returns the rows of `llama bench -o json` without the details."""
    rows = json_of(path)
    if not isinstance(rows, list):
        return []
    names = ["n_prompt", "n_gen", "n_depth", "n_parallel", "median_ts", "median_ratio"]
    return [
        {"log": path.stem, "model": Path(row["model_filename"]).stem, **{name: row.get(name) for name in names}}
        for row in rows
        if isinstance(row, dict) and "median_ts" in row
    ]


def profiled(path):
    """Returns shares of the GPU's limits from the raw page of ncu."""
    lines = [line for line in text(path).splitlines() if line.startswith('"')]
    return [
        {"kernel": row.get("Kernel Name"), **{name: row.get(counter) for name, counter in COUNTERS.items()}}
        for row in csv.DictReader(lines)
        if row.get("ID", "").isdigit()
    ]


def collected(logs):
    """Returns the results of one call."""
    log = lambda name: text(logs / f"{name}.log")
    phases = [line.split() for line in text(logs / "phases").splitlines()]
    ran = {name for name, _, _ in phases}
    report = {
        "phases": [
            {"name": name, "status": int(status), "seconds": int(s)} | ({"reason": reason(log(name))} if status != "0" else {})
            for name, status, s in phases
        ],
        "left_out": text(logs / "left_out").splitlines(),
    }
    if "probe" in ran:
        report["date"] = datetime.date.today().isoformat()
        report["gpu"] = probed(log("probe"))
    if ran & {"ceilings", "latencies"}:
        report["ceilings"] = [*json_lines(log("ceilings")), *json_lines(log("latencies"))]
    correctness = {name: fixtures(log(name)) for name in ("smoke", "fixtures") if name in ran}
    correctness |= {name: tests(log(name)) for name in ("ops", "ops-alone", "tests", "tests-alone", "f16-sums") if name in ran}
    if correctness:
        report["correctness"] = correctness
    if ran & set(SANITIZERS):
        report["sanitizer"] = {name: sanitizer(log(name)) for name in SANITIZERS if name in ran}
    if "precisions" in ran:
        report["precisions"] = list(json_lines(log("precisions")))
    times = [(path, json_of(path)) for path in sorted(logs.glob("times-*.json"))]
    kernels = [{"model": path.stem.removeprefix("times-"), **kernel} for path, found in times if found for kernel in found["kernels"]]
    if kernels:
        report["kernels"] = kernels
        report["is_emulated"] = any(found["is_emulated"] for _, found in times if found)
    rows = [row for path in sorted(logs.glob("bench-*.json")) for row in benchmarks(path)]
    if rows:
        report["bench"] = rows
    if (logs / "ncu.csv").exists():
        report["profile"] = profiled(logs / "ncu.csv")
    return report


def merged(reports):
    """Merges reports: lists are concatenated, and values of later reports take precedence."""
    whole = {}
    for report in reports:
        for name, value in report.items():
            if isinstance(value, list):
                whole[name] = whole.get(name, []) + [item for item in value if item not in whole.get(name, [])]
            elif isinstance(value, dict):
                whole[name] = whole.get(name, {}) | value
            else:
                whole[name] = value
    return whole


def ceiling(report, name):
    return max((line[name] for line in report.get("ceilings", []) if name in line), default=None)


def ending(phase, reasons_follow):
    """Describes the end of a failed phase."""
    status, why = phase["status"], None if reasons_follow else phase.get("reason")
    known = {124: "ran past its limit", 137: "hung"}
    killed = f"was killed by signal {status - 128}" if status > 128 else f"failed with status {status}"
    return f"{known.get(status, killed)} after {phase['seconds']} s" + (f": {why}" if why else "")


def most_common(reasons):
    """Yields a line for each of the most common reasons of failures."""
    counts = collections.Counter(reason for reason in reasons if reason)
    for why, n in counts.most_common(MAX_REASONS):
        yield f"    {n} x {why}"


def share(value, most):
    return f"{100 * value / most:3.0f} %" if value and most else "     "


def distinct(rows):
    """Returns the benchmark rows, except tests that were also measured alternately with the other engine."""
    test = lambda row: tuple(row[name] for name in ("model", "n_prompt", "n_gen", "n_depth", "n_parallel"))
    compared = {test(row) for row in rows if row.get("median_ratio")}
    return [row for row in rows if row.get("median_ratio") or test(row) not in compared]


def summary(report):
    """Yields the lines of the summary, the most important first."""
    gpu = report.get("gpu", {})
    if gpu:
        yield f"GPU: {gpu.get('name') or gpu.get('device')}, driver {gpu.get('driver_version')}, toolkit {gpu.get('toolkit')}"
        if gpu.get("name"):
            yield f"device of the engine: {gpu.get('device')}"
    if report.get("is_emulated"):
        yield "REHEARSAL on the emulated driver: no time below was measured on a GPU"
    if report.get("ceilings"):
        yield "ceilings: " + ", ".join(" ".join(f"{k}={v:g}" for k, v in line.items()) for line in report["ceilings"][:12])
    for phase in report["phases"]:
        if phase["status"] != 0:
            found = report.get("correctness", {}).get(phase["name"], {})
            yield f"FAILED {phase['name']}: {ending(phase, bool(found.get('failed')))}"
    for line in report["left_out"]:
        yield f"left out {line}"
    for name, found in report.get("correctness", {}).items():
        failed = found["failed"]
        n_failed = failed if isinstance(failed, int) else len(failed)
        names = found["names"] if isinstance(failed, int) else [f"{f['name']} {f['nmse']}" for f in failed]
        yield f"{name}: {found['passed']} passed, {n_failed} failed {', '.join(names[:6])}".rstrip()
        yield from most_common(found.get("reasons", []) if isinstance(failed, int) else [f["reason"] for f in failed])
    for name, found in report.get("sanitizer", {}).items():
        errors = "unknown number of" if found["errors"] is None else found["errors"]
        yield f"{name}: {errors} errors" + (f": {found['first'][0]}" if found["errors"] and found["first"] else "")
    for row in report.get("precisions", []):
        yield f"{row['logits']}: KL {row['kl']:.3g}, same top token {100 * row['same_top']:.1f} %, NMSE {row['nmse']:.2e}"
    for row in distinct(report.get("bench", [])):
        test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        ratio = f", {row['median_ratio']:.2f} of the other engine" if row.get("median_ratio") else ""
        yield f"{row['model']} {test} depth {row['n_depth']} x{row['n_parallel']}: {row['median_ts']:.1f} tok/s{ratio}"
    memory, tensor = ceiling(report, "tb_s"), ceiling(report, "bf16_tflops") or ceiling(report, "f16_tflops")
    kernels = report.get("kernels", [])
    totals = {}
    for k in kernels:
        totals[k["model"]] = totals.get(k["model"], 0) + k["us_total"]
    for k in sorted(kernels, key=lambda k: -k["us_total"])[:20]:
        rates = f"{k['gb_s'] or 0:6.0f} GB/s {share((k['gb_s'] or 0) / 1e3, memory)} {k['tflops'] or 0:6.1f} TFLOP/s {share(k['tflops'], tensor)}"
        part = 100 * k["us_total"] / totals[k["model"]]
        yield f"{part:4.1f} % {k['us_median']:8.1f} us x{k['launches']:<6} {rates} {k['model']} {k['kernel'][:90]}"


def main(arguments):
    if arguments[:1] == ["--merge"] and len(arguments) > 2:
        report = merged(json.loads(Path(path).read_text()) for path in arguments[2:])
        out = Path(arguments[1])
    elif len(arguments) == 3:
        call, logs, out = arguments[0], Path(arguments[1]), Path(arguments[2])
        own = collected(logs)
        before = json_of(out)
        report = merged([before, own] if before and call != "1" else [own])
    else:
        sys.exit(__doc__)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(line[:240] for line in list(summary(report))[:MAX_LINES]))


if __name__ == "__main__":
    main(sys.argv[1:])
