-- Every record of every partition. Keys compare by their bytes, which for ASCII is by code point.
CREATE TABLE records (
  id        INTEGER PRIMARY KEY,
  partition TEXT NOT NULL,
  key       TEXT NOT NULL,
  version   TEXT NOT NULL,  -- the operation id of the commit that wrote it
  value     BLOB NOT NULL,
  expires   REAL,           -- seconds since the epoch; NULL: never
  UNIQUE (partition, key)
);

-- What may be erased, soonest first; most records never expire and are not in it.
CREATE INDEX records_expires ON records (expires) WHERE expires IS NOT NULL;
