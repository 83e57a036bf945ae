"""The table of a soak, and whether it passed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.audit import (
    REWRITES,
    UPSERTS,
    Auditor,
    Entry,
    Waste,
    acknowledged,
    copied,
    findings,
    journals,
    lost_races,
    overlaps,
    reads,
    wasted,
)
from tests.soak.reader import POINTS
from tests.soak.site import Site

GIVEN_UP = "retention gave up job"  # what is slower than the grace; no conflict with a rewrite
WORKERS = ("inline", "ingest", "rewrite", "retain", "spark-upsert", "spark-maintain")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """A column of the table; `broken` says in words what must not be."""

    name: str
    rows: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def require(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.broken.append(otherwise)


def judge_soak(site: Site, auditor: Auditor, dead: Sequence[str]) -> Outcome:
    """Everything that is asked of a soak of an Opal table."""
    outcome = Outcome(name="Opal, " + ("S3" if site.options else "local files"))
    for line in dead:
        outcome.broken.append(line)
    jobs = journals(site)
    at_work = {job["role"] for job in jobs if "counts" in job}
    idle = [role for role in WORKERS if role not in at_work]
    outcome.require(not idle, f"did nothing: {', '.join(idle)}")
    for name, value in (
        _work(outcome, jobs, auditor)
        | _conflicts(outcome, site, auditor, jobs)
        | _reads(outcome, site)
    ).items():
        outcome.rows[name] = value
    table = copied(auditor.table)
    reread = auditor.reread(table)
    wrong = {version: problem for version, problem in reread.items() if problem}
    outcome.rows["versions read again at the end, wrong"] = f"{len(reread)}, {len(wrong)}"
    outcome.require(not wrong, f"versions differ from the model: {dict(list(wrong.items())[:3])}")
    missing = acknowledged(jobs, auditor.ledger)
    outcome.require(not missing, f"acknowledged upserts are not in their version: {missing[:3]}")
    broken = findings(table)
    outcome.rows["findings of opal check"] = str(len(broken))
    outcome.require(not broken, f"opal check: {broken[:3]}")
    return outcome


def _work(outcome: Outcome, jobs: Sequence[Entry], auditor: Auditor) -> dict[str, str]:
    met = overlaps(jobs)
    commits = auditor.commits
    outcome.require(
        bool(met["upserts"] and met["rewrites"]), "no upsert met a rewrite: nothing was tried"
    )
    spark = sum(job["role"].startswith("spark-") and job.get("version") is not None for job in jobs)
    return {
        "upsert commits": count_text(commits, UPSERTS),
        "rewrite commits": count_text(commits, (*REWRITES, "retain")),
        "jobs on Spark that committed": str(spark),
        "rows upserted": f"{sum(len(part['sku']) for part in auditor.ledger.model.parts):,}",
        "upserts that a rewrite overtook": str(met["upserts"]),
        "rewrites that an upsert overtook": str(met["rewrites"]),
    }


def _conflicts(
    outcome: Outcome, site: Site, auditor: Auditor, jobs: Sequence[Entry]
) -> dict[str, str]:
    given_up = [job for job in jobs if GIVEN_UP in job.get("conflict", "")]
    conflicts = [job for job in jobs if "conflict" in job and job not in given_up]
    waste = wasted(site, auditor, jobs)
    of_upserts = [job for job in waste if job.operation in UPSERTS]
    of_rewrites = [job for job in waste if job.operation in REWRITES]
    by_upserts = [job for job in of_rewrites if not _met_a_rewrite(job)]
    by_rewrites = [job for job in of_rewrites if job not in by_upserts]
    outcome.require(
        not conflicts, f"conflicts: {[(job['role'], job['conflict']) for job in conflicts[:3]]}"
    )
    outcome.require(not of_upserts, f"upserts threw work away: {of_upserts[:3]}")
    outcome.require(
        not by_upserts, f"rewrites threw work away without another rewrite: {by_upserts[:3]}"
    )
    return {
        "conflicts of upserts with rewrites": str(
            sum(job["operation"] in UPSERTS for job in conflicts)
        ),
        "conflicts of rewrites with upserts": str(
            sum(job["operation"] not in UPSERTS for job in conflicts)
        ),
        "work redone by upserts": _sum(of_upserts),
        "work redone by rewrites for upserts": _sum(by_upserts),
        "work redone by rewrites for rewrites": _sum(by_rewrites),
        "jobs that retention gave up": str(len(given_up)),
        "lost races for a version": str(lost_races(site)),
    }


def _met_a_rewrite(job: Waste) -> bool:
    return any(operation in job.beside for operation in REWRITES)


def _sum(waste: Sequence[Waste]) -> str:
    if not waste:
        return "0"
    files = sum(job.files for job in waste)
    size = sum(job.size for job in waste)
    return f"{len(waste)} jobs, {files} files, {size / 1e6:.1f} MB"


def _reads(outcome: Outcome, site: Site) -> dict[str, str]:
    entries = reads(site)
    wrong = [entry for entry in entries if entry["wrong"]]
    by_point = Counter(entry["point"] for entry in entries)
    outcome.require(not wrong, f"wrong reads: {wrong[:3]}")
    outcome.require(
        all(by_point[point] for point in POINTS),
        f"not every kind of read took place: {dict(by_point)}",
    )
    spark = sum(entry["role"].startswith("spark-") for entry in entries)
    return {
        "reads compared": count_text(by_point, POINTS),
        "reads on Spark among them": str(spark),
        "wrong reads": str(len(wrong)),
    }


def count_text(counts: Mapping[str, int], names: Sequence[str]) -> str:
    shown = [f"{name} {counts[name]}" for name in names if counts.get(name)]
    return f"{sum(counts.get(name, 0) for name in names)} ({', '.join(shown)})"


def judge_peer(name: str, figures: Mapping[str, Any]) -> Outcome:
    """Its conflicts are reported, not judged; wrong reads are judged."""
    upserts, rewrites, reads = figures["upserts"], figures["rewrites"], figures["reads"]
    outcome = Outcome(name=f"{name}, local files")
    outcome.rows = {
        "upsert commits": str(upserts["done"]),
        "rewrite commits": str(rewrites["done"] - figures["idle"]),
        "rows upserted": f"{figures['rows']:,}",
        "conflicts of upserts with rewrites": str(upserts["conflicts"]),
        "conflicts of rewrites with upserts": str(rewrites["conflicts"]),
        "work redone by upserts": f"{upserts['conflicts']} jobs, {upserts['redone_s']:.1f} s",
        "work redone by rewrites for upserts": (
            f"{rewrites['conflicts']} jobs, {rewrites['redone_s']:.1f} s"
        ),
        "jobs that no try brought in": str(upserts["given_up"] + rewrites["given_up"]),
        "reads compared": str(reads["done"]),
        "wrong reads": str(len(reads["errors"])),
    }
    outcome.require(
        bool(upserts["done"] and rewrites["done"] and reads["done"]), "one of the sides did nothing"
    )
    errors = upserts["errors"] + rewrites["errors"] + reads["errors"]
    outcome.require(not errors, f"failed: {errors[:2]}")
    return outcome


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Metrics down, systems across."""
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.rows))
    widths = [max(map(len, (outcome.name, *outcome.rows.values()))) for outcome in outcomes]
    first = max(map(len, names))
    heads = "  ".join(
        outcome.name.ljust(width) for outcome, width in zip(outcomes, widths, strict=True)
    )
    lines = [f"{'':<{first}}  {heads}"]
    for name in names:
        cells = (
            outcome.rows.get(name, "-").ljust(width)
            for outcome, width in zip(outcomes, widths, strict=True)
        )
        lines.append(f"{name:<{first}}  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)
