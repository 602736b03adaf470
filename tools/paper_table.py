#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/paper.md: the paper's plan and baselines simulated, beside what it published; then ours beside the paper's plan.

usage: paper_table.py NPUMOE [--jobs N] [--write docs/paper.md]     prints Markdown, or replaces the page's tables in place; one to four minutes
"""
import argparse
import concurrent.futures
import contextlib
import io
import itertools
import json
import re
import subprocess
import sys

NPUS = ("m2-max", "m2-ultra")
MODELS = ("qwen3-30b-a3b", "phi-3.5-moe", "phi-tiny-moe")
PROMPTS, CHUNKS = (1024, 4096), (256, 512, 1024)
BASELINES = ("cpu", "naive", "anemll")
HEADLINE = (4096, 256)  # prompt, chunk
COMMON = ("--expert-weights", "int8")  # the paper stored 8 bits
FAR = 0.25  # of a published figure: further away wants an explanation


class Npumoe:
    def __init__(self, path):
        self.path = path

    def json(self, *args):
        done = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def simulate(self, npu, model, prompt, chunk, *args):
        said = self.json("simulate", model, "--npu", npu, "--prompt", prompt, "--chunk", chunk, *COMMON, *args, "--json")
        return {p["placement"]: p for p in said["placements"]}


def seconds(placement):
    return placement["ttft_seconds"]["mean"]


def joules(placement):
    return placement["joules_per_token"]["mean"]


def cpu_seconds(placement):
    return placement["cpu_busy_seconds"]["mean"]


QUANTITIES = {"latency": seconds, "energy": joules, "cpu": cpu_seconds}


def gain(placements, quantity, before, after="all"):
    return QUANTITIES[quantity](placements[before]) / QUANTITIES[quantity](placements[after])


def span(values, unit="x"):
    low, high = min(values), max(values)
    digits = 1 if unit == " %" else 2
    texts = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return (texts[0] if texts[0] == texts[1] else " to ".join(texts)) + unit


def percent(share):
    return f"{100 * share:.1f} %"


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |")


def head(*cells):
    row(*cells)
    print("|" + "---|" * len(cells))


def distance(figure, values):
    """How far a published figure is from the simulated ones: 0 for one value within their range; for a range the further end."""
    low, high = min(values), max(values)
    if figure["low"] == figure["high"]:
        value = figure["low"]
        nearest = min(max(value, low), high)
        return nearest / value - 1
    ends = low / figure["low"] - 1, high / figure["high"] - 1
    return max(ends, key=abs)


def print_grid(grid):
    print("Each cell: the paper's plan (`all`) against `cpu` / `naive` / `anemll`, how many times less.\n")
    head("simulated on", "model", "prompt", "chunk", "latency", "energy", "CPU", "padding", "dropped")
    for (npu, model, prompt, chunk), placements in grid.items():
        cells = (" / ".join(f"{gain(placements, q, b):.2f}" for b in BASELINES) for q in QUANTITIES)
        plan = placements["all"]
        row(npu, model, prompt, chunk, *cells, percent(plan["padding"]["mean"]), percent(plan["dropped"]["mean"]))


def print_spans(grid):
    head("simulated on", "chunk", "latency", "energy", "CPU", "padding tiers+groups", "padding all", "dropped tiers+groups", "dropped all")
    for npu, chunk in itertools.product(NPUS, CHUNKS):
        some = [placements for key, placements in grid.items() if (key[0], key[3]) == (npu, chunk)]
        gains = (span([gain(p, q, b) for p in some for b in BASELINES]) for q in QUANTITIES)
        shares = (span([100 * p[name][share]["mean"] for p in some], " %")
                  for share in ("padding", "dropped") for name in ("tiers+groups", "all"))
        row(npu, chunk, *gains, *shares)


def simulated_values(grid):
    """Of every published figure: the simulated values that belong beside it, and where they are from."""
    def gains(quantity):
        return [gain(p, quantity, b) for p in grid.values() for b in BASELINES], "all rows, all baselines"

    at = {npu_model: grid[(*npu_model, *HEADLINE)] for npu_model in itertools.product(NPUS, MODELS)}
    headline = f"both chips, three models, prompt {HEADLINE[0]}, chunk {HEADLINE[1]}"

    def steps(quantity, after):
        return [gain(p, quantity, "base", after) for p in at.values()], headline

    def experts(placement):
        return placement["stages"]["experts"]

    on_npu = [p[name] for p in grid.values() for name in ("tiers+groups", "all") if p[name]["on_npu"]["mean"] > 0]
    padding = [100 * p["padding"]["mean"] for p in on_npu], "all rows, tiers+groups and all"
    ultra = ("m2-ultra", "phi-3.5-moe", 1024)
    return {
        "latency_gain": gains("latency"), "energy_gain": gains("energy"), "cpu_gain": gains("cpu"),
        "latency_peak": ([gain(grid[(*ultra, 256)], "latency", "naive")], "the same setting, phi-3.5-moe"),
        "energy_peak": ([gain(grid[(*ultra, 256)], "energy", "cpu"), gain(grid[(*ultra, 512)], "energy", "naive")],
                        "both settings, phi-3.5-moe on m2-ultra"),
        "expert_gain": ([experts(p["naive"]) / experts(p["all"]) for p in at.values()], headline),
        "grouping_cut": ([100 * (1 - experts(p["tiers+groups"]) / experts(p["tiers"])) for p in at.values()], headline),
        "ablation_tiers_latency": steps("latency", "tiers"), "ablation_groups_latency": steps("latency", "tiers+groups"),
        "ablation_groups_energy": steps("energy", "tiers+groups"), "ablation_all_latency": steps("latency", "all"),
        "padding": padding, "padding_mean": ([sum(padding[0]) / len(padding[0])], padding[1]),
        "dropped": ([100 * p["dropped"]["mean"] for p in on_npu], padding[1]),
    }


def print_published(published, grid):
    values = simulated_values(grid)
    head("quantity", "published", "setting", "source", "confidence", "simulated", "of", "off by")
    for figure in published:
        unit = " %" if figure["unit"] == "%" else figure["unit"]
        text = f"{figure['low']:g}" if figure["low"] == figure["high"] else f"{figure['low']:g} to {figure['high']:g}"
        cells = ("decode is not simulated", "", "")
        if figure["key"] in values:
            simulated, of = values[figure["key"]]
            off = distance(figure, simulated)
            cells = span(simulated, unit), of, ("within" if off == 0 else f"{100 * off:+.0f} %") + (" (*)" if abs(off) > FAR else "")
        row(figure["what"], text + unit, figure["setting"], figure["source"], figure["confidence"], *cells)


def print_steps(grid):
    prompt, chunk = HEADLINE
    head("simulated on", "model", "latency: tiers", "tiers+groups", "all", "ours", "energy: tiers", "tiers+groups", "all", "ours")
    for npu, model in itertools.product(NPUS, MODELS):
        placements = grid[(npu, model, prompt, chunk)]
        row(npu, model, *(f"{gain(placements, q, 'base', after):.2f}x" for q in ("latency", "energy")
                          for after in ("tiers", "tiers+groups", "all", "ours")))


def print_ours(grid, edp, halves, drift):
    prompt, chunk = HEADLINE
    head("simulated on", "model", "objective", "order", "TTFT all", "TTFT ours", "faster by", "energy ours / all", "time x energy ours / all", "dropped all", "dropped ours",
         "gap all", "gap ours", "drift x2: dropped all", "dropped ours", "slower all", "slower ours")
    for npu, model in itertools.product(NPUS, MODELS):
        calm = grid[(npu, model, prompt, chunk)]
        wild = drift[(npu, model)]
        for objective, ours in (("time", calm["ours"]), ("time, `--order wavefront`", halves[(npu, model)]["ours"]), ("edp", edp[(npu, model)]["ours"])):
            paper = calm["all"]
            drifted = (percent(wild["all"]["dropped"]["mean"]), percent(wild["ours"]["dropped"]["mean"]),
                       f"{100 * (seconds(wild['all']) / seconds(paper) - 1):+.1f} %",
                       f"{100 * (seconds(wild['ours']) / seconds(ours) - 1):+.1f} %") if objective == "time" else ("",) * 4
            row(npu, model, objective, ours["order"], f"{seconds(paper):.2f} s", f"{seconds(ours):.2f} s", f"{seconds(paper) / seconds(ours):.2f}x",
                f"{joules(ours) / joules(paper):.2f}", f"{seconds(ours) * joules(ours) / (seconds(paper) * joules(paper)):.2f}", percent(paper["dropped"]["mean"]), percent(ours["dropped"]["mean"]),
                percent(paper["gap_to_bound"]), percent(ours["gap_to_bound"]), *drifted)


def replace_tables(path, text):
    """The tables of a page give way to those of `text`, one for one."""
    table = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
    made = iter(table.findall(text))
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if len(table.findall(page)) != len(table.findall(text)):
        sys.exit(f"{path}: {len(table.findall(page))} tables, made {len(table.findall(text))}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(table.sub(lambda _: next(made), page))


def gap_means(placements):
    for placement in placements.values():
        placement["gap_to_bound"] = placement["gap_to_bound"]["mean"]
    return placements


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npumoe")
    parser.add_argument("--jobs", type=int, default=2, help="simulations at once")
    parser.add_argument("--write", metavar="PAGE", help="replace the tables of this page, in order, instead of printing them")
    args = parser.parse_args()
    npumoe = Npumoe(args.npumoe)
    prompt, chunk = HEADLINE
    tasks = {("grid", *key): key for key in itertools.product(NPUS, MODELS, PROMPTS, CHUNKS)}
    tasks |= {("edp", npu, model): (npu, model, prompt, chunk, "--placement", "ours", "--objective", "edp")
              for npu, model in itertools.product(NPUS, MODELS)}
    tasks |= {("halves", npu, model): (npu, model, prompt, chunk, "--placement", "ours", "--order", "wavefront")
              for npu, model in itertools.product(NPUS, MODELS)}
    tasks |= {("drift", npu, model): (npu, model, prompt, chunk, "--placement", "all,ours", "--run-drift-factor", 2)
              for npu, model in itertools.product(NPUS, MODELS)}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        made = dict(zip(tasks, pool.map(lambda task: gap_means(npumoe.simulate(*task)), tasks.values())))
    grid = {key[1:]: made[key] for key in tasks if key[0] == "grid"}
    edp, halves, drift = ({key[1:]: made[key] for key in tasks if key[0] == kind} for kind in ("edp", "halves", "drift"))
    with contextlib.redirect_stdout(io.StringIO() if args.write else sys.stdout) as tables:
        print_all(npumoe, grid, edp, halves, drift)
    if args.write:
        replace_tables(args.write, tables.getvalue())


def print_all(npumoe, grid, edp, halves, drift):
    print("## Published and simulated\n")
    print_published(npumoe.json("report", "--published"), grid)
    print("\n## The paper's plan against its baselines, by chip and chunk\n")
    print_spans(grid)
    print("\n## The paper's steps, against `base`\n")
    print_steps(grid)
    print("\n## Ours and the paper's plan\n")
    print_ours(grid, edp, halves, drift)
    print("\n## Every setting\n")
    print_grid(grid)


if __name__ == "__main__":
    main()
