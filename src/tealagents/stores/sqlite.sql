-- What the SQLite store asks, each statement under its name. {keys} stands for as many ? as there are keys.
-- The table is in migrations/sqlite. A value edited by hand may have become text: it is read as its bytes.

-- name: read
SELECT key, CAST(value AS BLOB), version
FROM records
WHERE partition = ? AND (expires IS NULL OR expires > ?) AND key IN ({keys})

-- from one key to before another
-- name: scan
SELECT key, CAST(value AS BLOB), version
FROM records
WHERE partition = ? AND key >= ? AND key < ? AND (expires IS NULL OR expires > ?)
ORDER BY key
LIMIT ?

-- name: scan_reverse
SELECT key, CAST(value AS BLOB), version
FROM records
WHERE partition = ? AND key >= ? AND key < ? AND (expires IS NULL OR expires > ?)
ORDER BY key DESC
LIMIT ?

-- name: expired
SELECT key FROM records WHERE partition = ? AND expires <= ? LIMIT ?

-- name: versions
SELECT key, version
FROM records
WHERE partition = ? AND (expires IS NULL OR expires > ?) AND key IN ({keys})

-- name: put
INSERT INTO records (partition, key, version, value, expires) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (partition, key)
DO UPDATE SET version = excluded.version, value = excluded.value, expires = excluded.expires

-- name: delete
DELETE FROM records WHERE partition = ? AND key = ?

-- Erases some of what has expired.
-- name: sweep
DELETE FROM records WHERE id IN (SELECT id FROM records WHERE expires <= ? ORDER BY expires LIMIT ?)

-- name: is_made
SELECT count(*) = 2 FROM sqlite_master WHERE type = 'table' AND name IN ('records', 'schema_version')

-- name: is_foreign
SELECT count(*) > 0 AND count(CASE WHEN name IN ('records', 'schema_version') THEN 1 END) < 2
FROM sqlite_master WHERE type = 'table'

-- name: create_schema_version
CREATE TABLE IF NOT EXISTS schema_version (number INTEGER NOT NULL, name TEXT NOT NULL, applied TEXT NOT NULL)

-- name: schema_number
SELECT coalesce(max(number), 0) FROM schema_version

-- name: migrated
INSERT INTO schema_version (number, name, applied) VALUES (?, ?, datetime('now'))
