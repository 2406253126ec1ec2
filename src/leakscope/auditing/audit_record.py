"""An audit as plain data, for `audit.json`."""

from __future__ import annotations

from dataclasses import asdict

from leakscope.auditing.attack_runs import LabelReading
from leakscope.auditing.audit_text import metrics_of, plain_number
from leakscope.auditing.descriptions import exposure_threat_model, sent_part
from leakscope.auditing.dishonest_server import Dishonest
from leakscope.auditing.remedies import Remedy
from leakscope.auditing.result import Audit, audit_client, audit_known, rule_of
from leakscope.auditing.verdict import RULES
from leakscope.metrics.interval import Estimate
from leakscope.play import AttackResult


def audit_record(audit: Audit) -> dict[str, object]:
    """Return the audit as plain data."""
    asr = audit.measures.asr
    return {
        "model": audit.name,
        "grade": audit.grade,
        "rule": rule_of(audit),
        "static": None if audit.static is None else audit.static.to_dict(),
        "threat_model": None if audit.exposure is None else exposure_threat_model(audit.exposure).name,
        "client": dict(audit_client(audit)),
        "sent": None if audit.exposure is None else sent_part(audit.exposure)._asdict(),
        "known_of_defences": [{"defence": what, "facts": words} for what, words in audit_known(audit)],
        "worst": None if audit.worst is None else audit.worst.name,
        "asr": None if asr is None else {"value": asr.value, "low": asr.low, "high": asr.high, "n": asr.n},
        "recovered_without_targets": audit.recovered_without_targets,
        "needs_targets": audit.needs_targets,
        "psnr": plain_number(audit.measures.psnr),
        "ssim": plain_number(audit.measures.ssim),
        "labels": plain_number(audit.measures.labels),
        "label_recovery": None if audit.labels is None else _labels(audit.labels),
        "target_error": None if audit.target_error is None else audit.target_error._asdict(),
        "text": None if audit.text is None else audit.text.record(),
        "text_remedies": [remedy.record() for remedy in audit.text_remedies],
        "attacks": [_run(run) for run in audit.runs],
        "recovered_as_seen": [{"name": each.name, **asdict(each.recovered)} for each in audit.as_seen],
        "null_baselines": [_run(run) for run in audit.nulls],
        "remedies": [_remedy(r) for r in (audit.advice.remedies if audit.advice else ())],
        "not_shown_to_help": [
            _remedy(r) for r in ((*audit.advice.useless, *audit.advice.unproven) if audit.advice else ())
        ],
        "dishonest_server": None if audit.dishonest is None else _dishonest(audit.dishonest),
        "unscored": [
            {
                "name": r.name,
                "left": plain_number(float(r.left.mean())),
                "structure": plain_number(float(r.structure.mean())),
            }
            for r in audit.unscored
        ],
        "ranking": audit.advice.ranking if audit.advice else None,
        "untested": [asdict(item) for item in audit.untested],
        "not_tested_long_enough": [{**cut._asdict(), "enough": cut.enough, "words": cut.words} for cut in audit.short],
        "unfinished": list(audit.unfinished),
        "interrupted": audit.interrupted,
        "minutes_needed": audit.minutes_needed,
        "notes": list(audit.notes),
        "device": None if audit.exposure is None else str(audit.exposure.device),
        "minutes": audit.minutes,
        "seconds": audit.seconds,
        "seed": audit.seed,
    }


def _dishonest(found: Dishonest) -> dict[str, object]:
    asr = found.measures.asr
    return {
        "grade": found.grade,
        "rule": RULES[found.grade],
        "threat_model": found.threat_model.name,
        "worst": found.worst or None,
        "asr": None if asr is None else {"value": asr.value, "low": asr.low, "high": asr.high, "n": asr.n},
        "public_examples": found.public,
        "attacks": [_run(run) for run in found.runs],
        "not_tested_long_enough": [{**cut._asdict(), "enough": cut.enough, "words": cut.words} for cut in found.short],
        "untested": [asdict(item) for item in found.untested],
    }


def _labels(read: LabelReading) -> dict[str, object]:
    plain = asdict(read)
    return {
        "value" if name == "share" else name: plain[name]
        for name in ("rule", "share", "low", "high", "n", "guessing", "sure")
    }


def _remedy(remedy: Remedy) -> dict[str, object]:
    return {
        "name": remedy.name,
        "strength": remedy.strength,
        "finding": remedy.finding.value,
        "against": remedy.met,
        "recovered": remedy.recovered,
        "n": remedy.run.summary.samples,
        "psnr": plain_number(remedy.psnr),
        "lost": plain_number(remedy.lost),
    }


def _run(run: AttackResult) -> dict[str, object]:
    return {
        "name": run.name,
        "note": run.note,
        "recovered": run.summary.content.value,
        "psnr": plain_number(run.summary.means["psnr"].value),
        "proved": None if run.reconstruction.proved is None else int(run.reconstruction.proved.sum()),
        "metrics": metrics_of(run),
        "n": run.summary.samples,
        "estimates": {
            name: _estimate(value) for name, value in {"content": run.summary.content, **run.summary.means}.items()
        },
        "seconds": run.seconds,
    }


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {name: plain_number(number) for name, number in asdict(value).items()}
