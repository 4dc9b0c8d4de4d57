"""The SQL of the projections: tables that repeat what the entries say, in columns, and views named for questions.

Insert-only and rebuildable. ``campaign.parent`` is the number of the registration that is amended; ``case_name`` is
the receipt's ``case``: that word is reserved in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PROJECTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "campaign": """CREATE TABLE campaign (
    registration_seq INTEGER PRIMARY KEY NOT NULL,
    campaign TEXT NOT NULL,
    family TEXT NOT NULL,
    registered_at TEXT NOT NULL,
    spec_sha256 TEXT NOT NULL,
    resolved_sha256 TEXT NOT NULL,
    parent TEXT,
    reason TEXT
) STRICT""",
        "attempt": """CREATE TABLE attempt (
    open_seq INTEGER PRIMARY KEY NOT NULL,
    campaign TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    family TEXT,
    rehearsal INTEGER,
    registration_seq INTEGER,
    lane TEXT,
    identity TEXT,
    cache_identity TEXT,
    opened_at TEXT NOT NULL,
    host TEXT,
    boot_id TEXT,
    pid INTEGER,
    start_ticks TEXT
) STRICT""",
        "attempt_end": """CREATE TABLE attempt_end (
    close_seq INTEGER PRIMARY KEY NOT NULL,
    campaign TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    ended TEXT NOT NULL,
    closed_at TEXT NOT NULL
) STRICT""",
        "stage_end": """CREATE TABLE stage_end (
    close_seq INTEGER NOT NULL,
    stage TEXT NOT NULL,
    campaign TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    last_n INTEGER NOT NULL,
    PRIMARY KEY (close_seq, stage)
) STRICT""",
        "receipt": """CREATE TABLE receipt (
    seq INTEGER PRIMARY KEY NOT NULL,
    campaign TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    stage TEXT NOT NULL,
    case_name TEXT,
    run INTEGER,
    rep INTEGER,
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    outcome TEXT,
    lane TEXT,
    host TEXT,
    recorded_at TEXT NOT NULL,
    path TEXT
) STRICT""",
        "measurement": """CREATE TABLE measurement (
    seq INTEGER NOT NULL,
    metric TEXT NOT NULL,
    value TEXT NOT NULL,
    shown TEXT NOT NULL,
    PRIMARY KEY (seq, metric)
) STRICT""",
        "verdict": """CREATE TABLE verdict (
    seq INTEGER PRIMARY KEY NOT NULL,
    campaign TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    ended TEXT,
    evaluator TEXT,
    source_sha256 TEXT,
    to_seq INTEGER,
    judged_at TEXT NOT NULL,
    path TEXT
) STRICT""",
        "criterion_result": """CREATE TABLE criterion_result (
    seq INTEGER NOT NULL,
    position INTEGER NOT NULL,
    campaign TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    name TEXT NOT NULL,
    outcome TEXT NOT NULL,
    bound TEXT,
    observed_exact TEXT,
    observed_shown TEXT,
    expected_samples INTEGER,
    samples INTEGER,
    PRIMARY KEY (seq, position)
) STRICT""",
        "event": """CREATE TABLE event (
    seq INTEGER PRIMARY KEY NOT NULL,
    lane TEXT NOT NULL,
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    host TEXT,
    boot_id TEXT,
    at_ns TEXT,
    recorded_at TEXT,
    pid INTEGER,
    start_ticks TEXT,
    site TEXT,
    status INTEGER
) STRICT""",
        "claim": """CREATE TABLE claim (
    seq INTEGER PRIMARY KEY NOT NULL,
    claim TEXT NOT NULL,
    action TEXT NOT NULL,
    text TEXT,
    recorded_at TEXT NOT NULL
) STRICT""",
        "claim_evidence": """CREATE TABLE claim_evidence (
    seq INTEGER PRIMARY KEY NOT NULL,
    claim TEXT NOT NULL,
    direction TEXT NOT NULL,
    campaign TEXT,
    attempt INTEGER,
    verdict_seq INTEGER
) STRICT""",
        "artefact": """CREATE TABLE artefact (
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    path TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size INTEGER,
    PRIMARY KEY (seq, role, path)
) STRICT""",
    }
)

INDEXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "campaign_by_name": "CREATE INDEX campaign_by_name ON campaign (campaign)",
        "attempt_by_number": "CREATE INDEX attempt_by_number ON attempt (campaign, attempt)",
        "attempt_end_by_number": "CREATE INDEX attempt_end_by_number ON attempt_end (campaign, attempt)",
        "receipt_by_attempt": "CREATE INDEX receipt_by_attempt ON receipt (campaign, attempt, stage, n)",
        "verdict_by_attempt": "CREATE INDEX verdict_by_attempt ON verdict (campaign, attempt)",
        "event_by_lane": "CREATE INDEX event_by_lane ON event (lane, n)",
        "artefact_by_path": "CREATE INDEX artefact_by_path ON artefact (path)",
    }
)

VIEWS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attempts_with_verdicts": """CREATE VIEW attempts_with_verdicts AS
SELECT a.campaign, a.attempt, a.family, a.lane, a.identity, a.rehearsal, a.opened_at, e.closed_at, e.ended,
       v.verdict, v.seq AS verdict_seq, v.path AS verdict_path, a.open_seq, e.close_seq, a.registration_seq,
       a.host, a.boot_id, a.pid, a.start_ticks
FROM attempt AS a
LEFT JOIN attempt_end AS e ON e.close_seq =
    (SELECT max(close_seq) FROM attempt_end WHERE campaign = a.campaign AND attempt = a.attempt)
LEFT JOIN verdict AS v ON v.seq =
    (SELECT max(seq) FROM verdict WHERE campaign = a.campaign AND attempt = a.attempt)
ORDER BY a.open_seq""",
        "attempts_without_end": """CREATE VIEW attempts_without_end AS
SELECT a.* FROM attempt AS a
WHERE NOT EXISTS (SELECT 1 FROM attempt_end WHERE campaign = a.campaign AND attempt = a.attempt)
ORDER BY a.open_seq""",
        "reps_of_attempt": """CREATE VIEW reps_of_attempt AS
SELECT campaign, attempt, stage, case_name, run, rep, n, kind, outcome, recorded_at, path, seq
FROM receipt WHERE rep IS NOT NULL
ORDER BY campaign, attempt, stage, n""",
        "figures_of_attempt": """CREATE VIEW figures_of_attempt AS
SELECT r.campaign, r.attempt, r.stage, r.case_name, r.run, r.rep, m.metric, m.shown, m.value, m.seq
FROM measurement AS m JOIN receipt AS r ON r.seq = m.seq
ORDER BY r.campaign, r.attempt, r.stage, r.n, m.metric""",
        "criteria_of_attempt": """CREATE VIEW criteria_of_attempt AS
SELECT c.* FROM criterion_result AS c
WHERE c.seq = (SELECT max(seq) FROM verdict WHERE campaign = c.campaign AND attempt = c.attempt)
ORDER BY c.seq, c.position""",
        "deaths": """CREATE VIEW deaths AS
SELECT lane, n, host, boot_id, at_ns, recorded_at, pid, start_ticks, site, status, seq
FROM event WHERE kind = 'death'
ORDER BY seq""",
        "handoffs_served": """CREATE VIEW handoffs_served AS
SELECT lane, count(*) AS handoffs, max(n) AS last_n
FROM event WHERE kind = 'handoff'
GROUP BY lane""",
        "claims_standing": """CREATE VIEW claims_standing AS
SELECT c.claim, c.text, c.recorded_at, c.seq,
       (SELECT count(*) FROM claim_evidence WHERE claim = c.claim AND direction = 'support') AS supports,
       (SELECT count(*) FROM claim_evidence WHERE claim = c.claim AND direction = 'contradict') AS contradictions
FROM claim AS c
WHERE c.action = 'claim'
  AND NOT EXISTS (SELECT 1 FROM claim WHERE claim = c.claim AND action = 'claim_withdrawn' AND seq > c.seq)
ORDER BY c.seq""",
    }
)
