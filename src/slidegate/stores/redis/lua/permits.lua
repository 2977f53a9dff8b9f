-- Permits, as in core/concurrency.py: a row of entries with a worker, an end and units. It has the functions of a ring.
--
-- A call is of one worker, and has its true count in `limit.held`. It replaces the count in the entry before the first
-- change of the call, and gets a new end with every change.

local OPEN = -2
local PERMIT, PERMIT_BYTES = "<c8i8I4", 20

local permits = {}

function permits.new()
  return permits.unpack("")
end

function permits.unpack(packed)
  return { kind = permits, packed = packed }
end

-- Drop the entries that have ended, and set apart that of the worker, with the true count.
function permits.settle(w, limit, now)
  if w.units then
    return
  end
  w.worker, w.others, w.ends, w.spent = limit.worker, "", now + limit.lease, limit.held
  local before = 0
  for at = 1, #w.packed, PERMIT_BYTES do
    local worker, ends, units = unpack_from(PERMIT, w.packed, at)
    if ends > now and worker == limit.worker then
      before = units
    elseif ends > now then
      w.others, w.spent = w.others .. sub(w.packed, at, at + PERMIT_BYTES - 1), w.spent + units
    end
  end
  w.units, w.dirty = limit.held, before ~= limit.held
end

function permits.wait(w, limit, _, cost)
  local wanted = max(cost, 1)
  if wanted > limit.amount then
    return NEVER
  end
  return w.spent + wanted > limit.amount and OPEN or 0
end

function permits.state(w)
  return w.spent, 0, 0
end

function permits.charge(w, _, _, units)
  units = min(units, MAX_UNITS - w.spent)
  w.units, w.spent, w.dirty = w.units + units, w.spent + units, true
  return units
end

-- Write the true count, which no longer includes what is handed back.
function permits.remove(w)
  w.dirty = true
  return true
end

function permits.pack(w)
  return w.others .. (w.units > 0 and pack(PERMIT, w.worker, w.ends, w.units) or "")
end

-- Return when those of the worker end; others have made the row live for theirs.
function permits.expires(w)
  return w.ends
end
