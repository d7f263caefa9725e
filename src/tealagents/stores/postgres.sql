-- What the PostgreSQL store asks, each statement under its name.  {schema} is the option of that name, quoted.
-- The tables and the function that commits are in migrations/postgres.

-- name: commit
SELECT {schema}.commit_records($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: read
SELECT key, value, version
FROM {schema}.records
WHERE partition = $1 AND key = ANY ($2) AND (expires_at IS NULL OR expires_at > clock_timestamp())

-- from $2 to before $3
-- name: scan
SELECT key, value, version
FROM {schema}.records
WHERE partition = $1 AND key >= $2 AND key < $3 AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY key
LIMIT $4

-- name: scan_reverse
SELECT key, value, version
FROM {schema}.records
WHERE partition = $1 AND key >= $2 AND key < $3 AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY key DESC
LIMIT $4

-- To the channels that the first characters of the payloads name. Apart from the commit: see postgres_link.
-- name: notify
SELECT pg_notify($1 || left(payload, 2), payload) FROM unnest($2::text[]) AS sent (payload)

-- name: expired
SELECT key FROM {schema}.records WHERE partition = $1 AND expires_at <= clock_timestamp() LIMIT $2

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: is_standby
SELECT pg_is_in_recovery()

-- Erases some of what has expired. Skips what a commit holds right now; it will be met again. Not by
-- clock_timestamp(): the index cannot be searched for what is volatile, and would be read to its end.
-- name: sweep
DELETE FROM {schema}.records
WHERE (partition, key) IN (
    SELECT partition, key
    FROM {schema}.records
    WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)

-- name: has_migrations
SELECT to_regclass('{schema}.migrations') IS NOT NULL

-- Whether another application has tables of these names in the schema: there is no `migrations` as made here.
-- name: is_foreign
SELECT count(*) > 0
    AND count(*) FILTER (WHERE relname = 'migrations' AND attname IN ('number', 'name', 'applied_at')) < 3
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = to_regnamespace('{schema}') AND relname IN ('migrations', 'records')

-- Asked first, because CREATE SCHEMA IF NOT EXISTS needs the right to create one even where there is one. Read from
-- the table: what this session looked up before it waited for `migration_lock` may be cached.
-- name: has_schema
SELECT EXISTS (SELECT FROM pg_namespace WHERE oid = to_regnamespace('{schema}'))

-- Whether the session's user may make what the first migration makes.
-- name: may_create
SELECT CASE
    WHEN to_regnamespace('{schema}') IS NULL THEN has_database_privilege(current_database(), 'CREATE')
    ELSE has_schema_privilege(to_regnamespace('{schema}'), 'CREATE')
END

-- name: schema_number
SELECT coalesce(max(number), 0) FROM {schema}.migrations

-- Of processes that start at once, one migrates; the others wait and find it done.
-- name: migration_lock
SELECT pg_advisory_xact_lock(hashtext('tealagents'), hashtext($1))

-- name: create_schema
CREATE SCHEMA {schema}

-- name: create_migrations
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)

-- name: migrated
INSERT INTO {schema}.migrations (number, name) VALUES ($1, $2)
