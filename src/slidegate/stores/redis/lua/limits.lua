-- Limits, as a request has them.

local LIMIT_BYTES = 39
local COUNT_DENIED, QUOTA, PERMITS = 1, 2, 4 -- modes; the first two may be combined
local PERIOD_KEPT_US = 3600000000

-- Unpack a limit: the field, the amount, three numbers, the resolution and the modes.
local function limit_of(text)
  local limit = { field = sub(text, 1, FIELD_BYTES), kind = ring, kept = 0 }
  local first, second, third, modes
  limit.amount, first, second, third, limit.resolution, modes = unpack_from("<I4i8i8i8HB", text, FIELD_BYTES + 1)
  limit.step, limit.span, limit.count_denied = first, second, modes % QUOTA == COUNT_DENIED
  if modes >= PERMITS then
    limit.kind, limit.field = permits, "p" .. limit.field
    limit.worker, limit.lease, limit.held = sub(text, 13, 20), second, third
  elseif modes >= QUOTA then
    -- A ring with one slice from 1970 to the end of the period, as in core/quotas.py. The caller's clock chooses three
    -- successive periods, and the server's clock decides which of them it is.
    local ends = first > now and first or second > now and second or third
    if ends <= now then
      error("the clock of a worker is behind the server's by more than a period of a quota; synchronize it", 0)
    end
    limit.step, limit.span, limit.kept = ends + 1, 0, PERIOD_KEPT_US
  end
  return limit
end
