-- What the Redis store runs on the server, each script under its name. A script is atomic.
--
-- A partition is
--   {prefix}{{partition}}:{key}        a string for each record: 24 characters of version, then the value
--   {prefix}{{partition}}#index        a sorted set of the keys of all records, in the order of their bytes
--   {prefix}{{partition}}#expiring     a sorted set of the keys that expire, by their millisecond
-- The braces make all of it one slot of a cluster. Records expire by themselves; their entries in the two
-- sets are removed by later commits. While a slot moves between nodes, a cluster refuses a script that would
-- see half of what it names in KEYS.

-- name: commit
-- KEYS: the index, what expires, then the records expected, put and deleted. If records are both put and
-- deleted, the first deleted one has a name that no record can have.
-- ARGV: how many are expected, how many put, where a record's own key begins in its name, how to publish; for
-- each expected one its version, or '' for none; for each put one its version and value, and its milliseconds
-- or ''; then the channels to notify.
-- Returns the keys whose expectations do not hold; where there are none, all is written.
local index, expiring = KEYS[1], KEYS[2]
local expected, put, start = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local differing = {}
for i = 1, expected do
    if redis.call('GETRANGE', KEYS[2 + i], 0, 23) ~= ARGV[4 + i] then
        differing[#differing + 1] = string.sub(KEYS[2 + i], start)
    end
end
if #differing > 0 then
    return differing
end

-- Nothing undoes what a script has written before an access list denies a command. So each command that the
-- commit needs runs, or has an equal that runs, before the first record changes; until then only the sets do,
-- by entries that do no harm. A server whose memory is full refuses only a script's first write: ZADD.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local added, lasting, deleted, expires = {}, {}, {}, {}
for i = 1, put do
    local key, ttl = string.sub(KEYS[2 + expected + i], start), ARGV[4 + expected + 2 * i]
    added[2 * i - 1], added[2 * i] = 0, key
    if ttl == '' then
        lasting[#lasting + 1] = key
    else
        expires[#expires + 1] = now + ttl
        expires[#expires + 1] = key
    end
end
for i = 3 + expected + put, #KEYS do
    local key = string.sub(KEYS[i], start)
    deleted[#deleted + 1], lasting[#lasting + 1] = key, key
end
if put > 0 then
    redis.call('ZADD', index, unpack(added))
end
if #lasting > 0 then
    redis.call('ZREM', expiring, unpack(lasting))
end
-- a second late, so that no record outlives its entry; a few at a time, and more than one commit adds
local gone = redis.call('ZRANGEBYSCORE', expiring, '-inf', now - 1000, 'LIMIT', 0, 20)
if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
    redis.call('ZREM', expiring, unpack(gone))
    if put > 0 then
        redis.call('ZADD', index, unpack(added))
    end
end
if put > 0 and #deleted > 0 then
    redis.call('DEL', KEYS[3 + expected + put])
end

for i = 1, put do
    local record, value = KEYS[2 + expected + i], ARGV[3 + expected + 2 * i]
    local ttl = ARGV[4 + expected + 2 * i]
    if ttl == '' then
        redis.call('SET', record, value)
    else
        redis.call('SET', record, value, 'PXAT', now + ttl)
    end
end
if #expires > 0 then
    redis.call('ZADD', expiring, unpack(expires))
end
if #deleted > 0 then
    redis.call('DEL', unpack(KEYS, 3 + expected + put))
    redis.call('ZREM', index, unpack(deleted))
end

-- where an access list forbids it, the commit holds and watches poll
for i = 5 + expected + 2 * put, #ARGV do
    redis.pcall(ARGV[4], ARGV[i], '')
end
return {}

-- name: scan
-- KEYS: the index.
-- ARGV: the bounds in the direction of the scan, the limit, '1' for the reverse, how records' names begin.
-- Returns the keys that are next, and their records.
local page = {KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3]}
local keys = redis.call(ARGV[4] == '1' and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX', unpack(page))
if #keys == 0 then
    return {keys, keys}
end
local records = {}
for i, key in ipairs(keys) do
    records[i] = ARGV[5] .. key
end
return {keys, redis.call('MGET', unpack(records))}

-- name: scan_believed
-- The same for a server that lets scripts touch only what is in KEYS, and for a slot on the move.
-- KEYS: the index, then the records that the caller believes to be next.
-- ARGV: as above.
-- Returns the keys that are next and, where the caller was right, their records.
local page = {KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3]}
local keys = redis.call(ARGV[4] == '1' and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX', unpack(page))
if #keys == 0 then
    return {keys, keys}
end
if #keys ~= #KEYS - 1 then
    return {keys}
end
for i, key in ipairs(keys) do
    if KEYS[1 + i] ~= ARGV[5] .. key then
        return {keys}
    end
end
return {keys, redis.call('MGET', unpack(KEYS, 2))}

-- name: rights
-- ARGV: how all names begin, '1' for a node of a cluster.
-- Raises the first command that the user may not run. On servers before 7.0 each is run, which changes nothing
-- because nothing has these names. They are those of a partition: a user may have rights to no others.
local record, index = ARGV[1] .. '{rights}:record', ARGV[1] .. '{rights}#index'
local expiring = ARGV[1] .. '{rights}#expiring'
local needed = {
    {'TIME'}, {'GETRANGE', record, 0, 23}, {'SET', record, '', 'XX'}, {'DEL', record}, {'MGET', record},
    {'ZADD', index, 'XX', 0, ''}, {'ZREM', index, ''}, {'ZRANGEBYLEX', index, '-', '+'},
    {'ZREVRANGEBYLEX', index, '+', '-'}, {'ZADD', expiring, 'XX', 0, ''}, {'ZREM', expiring, ''},
    {'ZRANGEBYSCORE', expiring, 0, 1},
}
if ARGV[2] == '1' then -- needed only while a slot moves, and by watches of other nodes
    needed[#needed + 1], needed[#needed + 2] = {'ASKING'}, {'PING'}
end
local function denied(command)
    if redis.acl_check_cmd then
        return not redis.acl_check_cmd(unpack(command))
    end
    local reply = redis.pcall(unpack(command))
    local refusal = type(reply) == 'table' and reply.err or ''
    return string.find(refusal, 'The user executing the script') or string.find(refusal, 'NOPERM')
end
for _, command in ipairs(needed) do
    if denied(command) then
        local names = command[2] and " on keys like '" .. command[2] .. "'" or ''
        return redis.error_reply("NOPERM it may not run '" .. command[1] .. "'" .. names)
    end
end
return {}

-- name: now
-- KEYS: any; in a cluster it says whose clock is asked, so that all processes ask the same.
return redis.call('TIME')
