-- The records, and the function that commits.  {schema} is the option of that name, quoted.

-- Texts of this project are ASCII, ordered by code points: collation "C", whatever the database's is.
CREATE TABLE {schema}.records (
    partition  text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    -- the id of the operation that wrote the record
    version    text NOT NULL,
    value      bytea NOT NULL,
    -- when the record counts as absent; the store erases it some time later
    expires_at timestamptz,
    PRIMARY KEY (partition, key)
);

CREATE INDEX records_expiring ON {schema}.records (expires_at) WHERE expires_at IS NOT NULL;

-- One commit: one statement of the client, one transaction, one round trip.
--
-- Commits that share a key take turns: before anything is compared each locks all its keys, those that are only
-- expected and those that do not exist yet included, which is why the locks are advisory ones. They are taken in
-- one order, so that no two commits wait for each other. Each statement of the function sees what was committed
-- before it began (READ COMMITTED), and the locks fall after the commit can be seen.
-- Where an expectation does not hold: SQLSTATE TA001, its detail the keys that differ.
CREATE FUNCTION {schema}.commit_records(
    in_partition text,
    in_operation text,
    expected     text[],    -- keys
    versions     text[],    -- and the version each must have, or NULL where it must be absent
    put          text[],    -- keys
    bodies       bytea[],   -- their values
    ttls         float8[],  -- and the seconds after which each expires, or NULL for never
    deleted      text[],    -- keys
    unsynced     boolean    -- whether the next commit that is synced may make this one survive a crash of the server
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    differing text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING MESSAGE = 'commits need the isolation level READ COMMITTED: ALTER ROLE '
            || quote_ident(current_user) || ' SET default_transaction_isolation = ''read committed''';
    END IF;

    -- the log is one: a later commit that is flushed flushes this one, too
    IF unsynced THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    PERFORM pg_advisory_xact_lock(lock)
    FROM (
        SELECT DISTINCT hashtextextended(in_partition || ' ' || k, 0) AS lock
        FROM unnest(expected || put || deleted) AS concerned (k)
        ORDER BY lock
    ) AS in_order;

    SELECT array_agg(e.k) INTO differing
    FROM unnest(expected, versions) AS e (k, v)
    LEFT JOIN {schema}.records AS r
        ON r.partition = in_partition AND r.key = e.k
        AND (r.expires_at IS NULL OR r.expires_at > clock_timestamp())
    WHERE r.version IS DISTINCT FROM e.v;

    IF differing IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'TA001', MESSAGE = 'an expectation does not hold',
            DETAIL = array_to_string(differing, ' ');
    END IF;

    INSERT INTO {schema}.records (partition, key, version, value, expires_at)
    SELECT in_partition, k, in_operation, body, clock_timestamp() + make_interval(secs => ttl)
    FROM unnest(put, bodies, ttls) AS p (k, body, ttl)
    ON CONFLICT (partition, key) DO UPDATE
        SET version = excluded.version, value = excluded.value, expires_at = excluded.expires_at;

    IF cardinality(deleted) > 0 THEN
        DELETE FROM {schema}.records AS r WHERE r.partition = in_partition AND r.key = ANY (deleted);
    END IF;
END
$$;
