-- Permits, as in core/counters.py: a row of entries with a worker, an end and units. It has the functions of a ring.
--
-- A call is of one worker. `limit.held` is its true count before the call, so it replaces the count in the entry, unless
-- the row was written in this call: `written` has the names of its hash and field. The entry gets a new end whenever it is
-- written. Few calls have permits, so these functions are defined by the first one that has.

local OPEN = -2
local PERMIT = "<c8i8I4"
local PERMIT_BYTES = 20

local function define_permits()
  local permits = { written = {} }

  -- Return the row in a stored value without the entries that have ended, and the true count of the worker.
  function permits.read(packed, limit, name)
    local is_written = permits.written[name .. limit.field]
    local w, own = { others = "", spent = 0 }, 0
    for at = 1, #packed, PERMIT_BYTES do
      local worker, ends, units = unpack_from(PERMIT, packed, at)
      if ends > now and worker == limit.worker then
        own = units
      elseif ends > now then
        w.others, w.spent = w.others .. sub(packed, at, at + PERMIT_BYTES - 1), w.spent + units
      end
    end
    w.units = is_written and own or limit.held
    w.spent, w.differs = w.spent + w.units, w.units ~= own
    return w
  end

  function permits.pack(w, limit)
    return w.others .. (w.units > 0 and pack(PERMIT, limit.worker, now + limit.lease, w.units) or "")
  end

  function permits.wait(w, limit, cost)
    local wanted = max(cost, 1)
    if wanted > limit.amount then
      return NEVER
    end
    return w.spent + wanted > limit.amount and OPEN or 0
  end

  function permits.charge(w, _, units)
    units = min(units, MAX_UNITS - w.spent)
    w.units, w.spent = w.units + units, w.spent + units
    return units
  end

  -- Do nothing: the true count no longer includes what is handed back.
  function permits.remove()
    return true
  end

  function permits.state(w)
    return w.spent, 0, 0
  end

  -- Return when those of the worker end; others have made the row live for theirs.
  function permits.expires(_, limit)
    return now + limit.lease
  end

  return permits
end
