-- 0001.sql - schema version 1 of a nightshift queue. schema/README.md says what the tables are for.
-- Times are milliseconds since 1970 unless a name says otherwise. No JSON function may appear outside the v_ views: the
-- program opens the file with trusted_schema off and never reads those views.
-- BLOBs: token ids are int32 little-endian, log-probabilities float32 little-endian; top_logprobs holds, per token, k ids
-- and then k values, k being n_top in sequences.sampler.
CREATE TABLE models (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  location TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  tokenizer_fingerprint TEXT NOT NULL,
  context_limit INTEGER NOT NULL CHECK (context_limit > 0),
  lane TEXT NOT NULL DEFAULT 'main',         -- which runner serves it
  info TEXT NOT NULL DEFAULT '{}',
  added_at INTEGER NOT NULL
) STRICT;
CREATE TABLE batches (
  id INTEGER PRIMARY KEY,
  public_id TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  model_id INTEGER REFERENCES models(id) ON DELETE RESTRICT,   -- bound by the first run
  endpoint TEXT NOT NULL CHECK (endpoint IN ('/v1/chat/completions','/v1/completions','lm_eval','plain')), -- plain: also mixed files
  status TEXT NOT NULL DEFAULT 'validating' CHECK (status IN
    ('validating','failed','in_progress','finalizing','completed','expired','cancelling','cancelled')),
  held INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0,1)),
  priority INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9),
  weight INTEGER NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 100),
  after_batch INTEGER REFERENCES batches(id) ON DELETE SET NULL,
  after_rule TEXT CHECK (after_rule IN ('ok','any')),
  input_name TEXT,
  input_sha256 TEXT,
  max_attempts INTEGER NOT NULL DEFAULT 3 CHECK (max_attempts BETWEEN 1 AND 100),
  deadline_at INTEGER,
  metadata TEXT NOT NULL DEFAULT '{}',
  validation_errors TEXT,
  created_at INTEGER NOT NULL,
  in_progress_at INTEGER, finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER,
  expired_at INTEGER, cancelling_at INTEGER, cancelled_at INTEGER,
  purge_after INTEGER,
  again INTEGER NOT NULL DEFAULT 0 CHECK (again IN (0,1)),    -- a deliberate second copy
  CHECK ((after_batch IS NULL) = (after_rule IS NULL))
) STRICT;
CREATE UNIQUE INDEX batches_once ON batches (input_sha256, name) WHERE again = 0 AND status <> 'failed';
CREATE TABLE runners (
  id INTEGER PRIMARY KEY AUTOINCREMENT,      -- this IS the fencing token
  lane TEXT NOT NULL DEFAULT 'main',
  host TEXT NOT NULL, boot_id TEXT NOT NULL, pid INTEGER NOT NULL, pid_start INTEGER NOT NULL,
  version TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('running','draining','sleeping','stopped','lost')),
  heartbeat_boot_ms INTEGER NOT NULL,
  heartbeat_at INTEGER NOT NULL,
  progress_at INTEGER,
  started_at INTEGER NOT NULL,
  ended_at INTEGER,
  end_reason TEXT,
  note TEXT,                                 -- why it sleeps, for status
  CHECK ((ended_at IS NULL) = (state IN ('running','draining','sleeping')))
) STRICT;
CREATE UNIQUE INDEX one_live_runner ON runners (lane) WHERE ended_at IS NULL;
CREATE TABLE requests (
  id INTEGER PRIMARY KEY,
  batch_id INTEGER NOT NULL REFERENCES batches(id) ON DELETE CASCADE,
  line_no INTEGER NOT NULL,
  custom_id TEXT,
  refused INTEGER NOT NULL DEFAULT 0 CHECK (refused IN (0,1)),   -- a bad line, kept as a failed request
  kind TEXT CHECK (kind IN ('chat','completion','plain','choice','loglikelihood','loglikelihood_rolling','generate_until')),
  body TEXT NOT NULL DEFAULT '',
  body_sha256 TEXT NOT NULL,
  n_prompt INTEGER, max_new INTEGER,
  group_key INTEGER,
  state TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued','running','done','failed','cancelled','expired')),
  priority INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9),
  not_before INTEGER NOT NULL DEFAULT 0,
  tries INTEGER NOT NULL DEFAULT 0,
  suspect INTEGER NOT NULL DEFAULT 0,           -- deaths of runners since its last committed wave
  alone INTEGER NOT NULL DEFAULT 0,             -- of these, with no other request running, weighed by poison.c
  skips INTEGER NOT NULL DEFAULT 0,
  cost INTEGER NOT NULL DEFAULT 1,              -- estimated tokens, for fair shares among batches
  extra_tries INTEGER NOT NULL DEFAULT 0,       -- granted by retry
  runner_id INTEGER REFERENCES runners(id),
  cancel_asked INTEGER NOT NULL DEFAULT 0 CHECK (cancel_asked IN (0,1)),
  enqueued_at INTEGER NOT NULL, started_at INTEGER, finished_at INTEGER,
  UNIQUE (batch_id, line_no),
  CHECK (refused = 1 OR (kind IS NOT NULL AND custom_id IS NOT NULL AND length(CAST(custom_id AS BLOB)) BETWEEN 1 AND 512)),
  CHECK ((state = 'running') = (runner_id IS NOT NULL)),
  CHECK ((finished_at IS NOT NULL) = (state IN ('done','failed','cancelled','expired')))
) STRICT;
CREATE UNIQUE INDEX requests_by_custom_id ON requests (batch_id, custom_id) WHERE refused = 0;
CREATE INDEX requests_pick ON requests (batch_id, priority, not_before, id) WHERE state = 'queued';
CREATE INDEX requests_mine ON requests (runner_id) WHERE state = 'running';
CREATE INDEX requests_by_batch ON requests (batch_id, state);
CREATE INDEX requests_suspect ON requests (suspect, id) WHERE suspect >= 2 AND state = 'queued';
CREATE TABLE attempts (
  id INTEGER PRIMARY KEY,
  request_id INTEGER NOT NULL REFERENCES requests(id) ON DELETE CASCADE,
  try_no INTEGER NOT NULL,
  runner_id INTEGER NOT NULL REFERENCES runners(id),
  began_at INTEGER NOT NULL, ended_at INTEGER,
  outcome TEXT CHECK (outcome IN ('done','error','yielded','lost','cancelled','expired')),
  error TEXT,
  resumed_from INTEGER NOT NULL DEFAULT 0,
  resume_kind TEXT NOT NULL DEFAULT 'fresh' CHECK (resume_kind IN ('fresh','state','replay')),
  CHECK ((ended_at IS NULL) = (outcome IS NULL))
) STRICT;
CREATE UNIQUE INDEX one_open_attempt ON attempts (request_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_by_request ON attempts (request_id, id);
CREATE TABLE sequences (
  id INTEGER PRIMARY KEY,
  request_id INTEGER NOT NULL REFERENCES requests(id) ON DELETE CASCADE,
  choice INTEGER NOT NULL DEFAULT 0,
  mode TEXT NOT NULL DEFAULT 'generate' CHECK (mode IN ('generate','score')),
  score_from INTEGER,
  prompt_tokens BLOB NOT NULL,
  n_prompt INTEGER NOT NULL,
  n_out INTEGER NOT NULL DEFAULT 0,
  sampler TEXT NOT NULL DEFAULT '{}',
  score REAL, is_greedy INTEGER,               -- scoring: sum of log-probabilities; would greedy decoding say it
  prompt_logprobs BLOB, prompt_top_logprobs BLOB,   -- echo
  finish_reason TEXT CHECK (finish_reason IN ('stop','length','tool_calls','error')),
  UNIQUE (request_id, choice),
  CHECK (length(prompt_tokens) = 4 * n_prompt)
) STRICT;
CREATE TABLE seq_chunks (
  seq_id INTEGER NOT NULL REFERENCES sequences(id) ON DELETE CASCADE,
  pos INTEGER NOT NULL,
  n INTEGER NOT NULL CHECK (n > 0),
  tokens BLOB NOT NULL,
  logprobs BLOB, top_logprobs BLOB,
  wave_id INTEGER NOT NULL,
  PRIMARY KEY (seq_id, pos),
  CHECK (length(tokens) = 4 * n)
) STRICT, WITHOUT ROWID;
CREATE TABLE state_files (
  id INTEGER PRIMARY KEY,
  seq_id INTEGER NOT NULL REFERENCES sequences(id) ON DELETE CASCADE,
  part TEXT NOT NULL CHECK (part IN ('base','delta')),
  from_pos INTEGER NOT NULL, to_pos INTEGER NOT NULL CHECK (to_pos > from_pos),
  rel_path TEXT NOT NULL UNIQUE,
  bytes INTEGER NOT NULL, checksum TEXT NOT NULL,
  model_fingerprint TEXT NOT NULL, engine_abi INTEGER NOT NULL,
  wave_id INTEGER NOT NULL, made_at INTEGER NOT NULL,
  UNIQUE (seq_id, from_pos, to_pos)
) STRICT;
CREATE TABLE waves (
  id INTEGER PRIMARY KEY,
  runner_id INTEGER NOT NULL REFERENCES runners(id),
  kind TEXT NOT NULL CHECK (kind IN ('prefill','decode','mixed')),
  began_at INTEGER NOT NULL, ended_at INTEGER NOT NULL,
  n_seqs INTEGER NOT NULL, n_tokens_in INTEGER NOT NULL, n_tokens_out INTEGER NOT NULL,
  bytes_read INTEGER NOT NULL, cache_hits INTEGER NOT NULL, cache_misses INTEGER NOT NULL,
  io_ms INTEGER NOT NULL, compute_ms INTEGER NOT NULL,
  state_bytes INTEGER NOT NULL DEFAULT 0, rss_bytes INTEGER, free_bytes INTEGER,
  detail TEXT NOT NULL DEFAULT '{}'            -- the account of the wave, as `waves --json` shows it
) STRICT;
CREATE TABLE results (
  request_id INTEGER PRIMARY KEY REFERENCES requests(id) ON DELETE CASCADE,
  attempt_id INTEGER REFERENCES attempts(id),
  status_code INTEGER NOT NULL,
  response TEXT,
  error TEXT,
  prompt_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
  replays INTEGER NOT NULL DEFAULT 0,
  correct INTEGER CHECK (correct IN (0,1)),    -- against expected or answer; NULL without one
  content_sha256 TEXT NOT NULL,                -- of the body without id, created, request_id, x_local
  local TEXT NOT NULL DEFAULT '{}',            -- becomes x_local: contract, model, restored, recomputed, waves, times
  written_at INTEGER NOT NULL,
  CHECK ((response IS NULL) <> (error IS NULL))
) STRICT;
CREATE TRIGGER results_are_final BEFORE UPDATE ON results BEGIN
  SELECT RAISE(ABORT, 'results are written once'); END;
CREATE TRIGGER results_once BEFORE INSERT ON results WHEN EXISTS (SELECT 1 FROM results WHERE request_id = NEW.request_id) BEGIN
  SELECT RAISE(ABORT, 'results are written once'); END;
CREATE TABLE suspends (                        -- a wave stopped at a layer boundary
  id INTEGER PRIMARY KEY, runner_id INTEGER NOT NULL REFERENCES runners(id),
  rel_path TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL, checksum TEXT NOT NULL,
  model_fingerprint TEXT NOT NULL, contract TEXT NOT NULL, next_layer INTEGER NOT NULL, made_at INTEGER NOT NULL
) STRICT;
CREATE TABLE run_windows (
  id INTEGER PRIMARY KEY,
  batch_id INTEGER REFERENCES batches(id) ON DELETE CASCADE,
  days INTEGER NOT NULL DEFAULT 127 CHECK (days BETWEEN 1 AND 127),
  from_min INTEGER NOT NULL CHECK (from_min BETWEEN 0 AND 1439),
  to_min INTEGER NOT NULL CHECK (to_min BETWEEN 0 AND 1439),
  tz TEXT NOT NULL
) STRICT;
CREATE TABLE control (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0,1)),
  drain INTEGER NOT NULL DEFAULT 0 CHECK (drain IN (0,1)),
  reason TEXT, changed_at INTEGER
) STRICT;
INSERT INTO control(id) VALUES (1);
CREATE TABLE inbox (                          -- prompts added by hand; not read yet
  id INTEGER PRIMARY KEY, prompt TEXT NOT NULL, model TEXT, max_tokens INTEGER, custom_id TEXT,
  added_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  problem TEXT
) STRICT;
CREATE TABLE events (
  id INTEGER PRIMARY KEY, at INTEGER NOT NULL,
  level TEXT NOT NULL CHECK (level IN ('debug','info','warn','error')),
  kind TEXT NOT NULL, runner_id INTEGER, batch_id INTEGER, request_id INTEGER,
  detail TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX events_at ON events (at);
CREATE TABLE actions (                         -- what people did: cancel, retry, hold ...
  id INTEGER PRIMARY KEY, at INTEGER NOT NULL, uid INTEGER NOT NULL, who TEXT NOT NULL, host TEXT NOT NULL,
  verb TEXT NOT NULL, args TEXT NOT NULL, rows_changed INTEGER NOT NULL, note TEXT
) STRICT;
CREATE TABLE audits (                          -- what a checkpoint holds, what its router did
  id INTEGER PRIMARY KEY, at INTEGER NOT NULL, model_id INTEGER REFERENCES models(id), kind TEXT NOT NULL,
  verdict TEXT NOT NULL CHECK (verdict IN ('clean','findings','broken')), report TEXT NOT NULL
) STRICT;
CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL, tool_version TEXT NOT NULL) STRICT;

CREATE VIEW v_batches AS
SELECT b.id, b.public_id, b.name, m.name AS model, b.status, b.held, b.priority,
  COUNT(r.id) AS total,
  SUM(r.state='done') AS completed, SUM(r.state IN ('failed','expired','cancelled')) AS failed,
  SUM(r.state='running') AS running, SUM(r.state='queued') AS queued,
  datetime(b.created_at/1000,'unixepoch') AS created_utc
FROM batches b LEFT JOIN models m ON m.id=b.model_id LEFT JOIN requests r ON r.batch_id=b.id GROUP BY b.id;
CREATE VIEW v_requests AS
SELECT r.id, b.public_id AS batch, r.custom_id, r.state, r.priority, r.tries, r.n_prompt,
  COALESCE((SELECT SUM(n_out) FROM sequences s WHERE s.request_id=r.id),0) AS tokens_out, r.max_new,
  datetime(r.enqueued_at/1000,'unixepoch') AS enqueued_utc, datetime(r.finished_at/1000,'unixepoch') AS finished_utc
FROM requests r JOIN batches b ON b.id=r.batch_id;
CREATE VIEW v_results AS
SELECT b.public_id AS batch, r.custom_id, x.status_code,
  COALESCE(x.response ->> '$.choices[0].message.content',
    x.response ->> ('$.choices[' || COALESCE(x.response ->> '$.best', 0) || '].text')) AS text,
  COALESCE(x.error ->> '$.message', x.response ->> '$.error.message') AS error, x.prompt_tokens, x.completion_tokens
FROM results x JOIN requests r ON r.id=x.request_id JOIN batches b ON b.id=r.batch_id;
CREATE VIEW v_dead AS
SELECT v.*, COALESCE((SELECT a.error FROM attempts a WHERE a.request_id=v.id ORDER BY a.id DESC LIMIT 1),
    (SELECT COALESCE(x.error ->> '$.message', x.response ->> '$.error.message') FROM results x WHERE x.request_id=v.id))
  AS last_error
FROM v_requests v WHERE v.state='failed';
CREATE VIEW v_waves AS
SELECT id AS wave, kind, n_seqs, (ended_at-began_at)/1000.0 AS seconds,
  round(n_tokens_out*1000.0/NULLIF(ended_at-began_at,0),3) AS tokens_per_s,
  round(bytes_read/1e6/NULLIF((ended_at-began_at)/1000.0,0),1) AS mb_per_s,
  round(100.0*cache_hits/NULLIF(cache_hits+cache_misses,0),1) AS hit_pct,
  datetime(ended_at/1000,'unixepoch') AS ended_utc FROM waves;
CREATE VIEW v_doctor AS
  SELECT 'terminal request without result' AS problem, id AS ref FROM requests r
   WHERE state IN ('done','failed','expired','cancelled') AND NOT EXISTS (SELECT 1 FROM results x WHERE x.request_id=r.id)
  UNION ALL SELECT 'result on unfinished request', x.request_id FROM results x JOIN requests r ON r.id=x.request_id WHERE r.state IN ('queued','running')
  UNION ALL SELECT 'token count differs from chunks', s.id FROM sequences s WHERE s.n_out <> COALESCE((SELECT SUM(n) FROM seq_chunks c WHERE c.seq_id=s.id),0)
  UNION ALL SELECT 'gap or overlap in chunks', c.seq_id FROM seq_chunks c WHERE c.pos <> COALESCE((SELECT SUM(n) FROM seq_chunks d WHERE d.seq_id=c.seq_id AND d.pos<c.pos),0)
  UNION ALL SELECT 'running under an ended runner', r.id FROM requests r JOIN runners u ON u.id=r.runner_id WHERE r.state='running' AND u.ended_at IS NOT NULL
  UNION ALL SELECT 'open attempt on non-running request', a.request_id FROM attempts a JOIN requests r ON r.id=a.request_id WHERE a.ended_at IS NULL AND r.state<>'running';
