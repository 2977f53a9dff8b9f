-- The count of a quota is a ring, as in core/quotas.py: its slice began in 1970 and ends with the period. The caller's clock
-- chooses three successive periods, and the server's clock decides which of them it is.

local PERIOD_KEPT_US = 3600000000

local function become_quota(limit, ends, now)
  local place = 1
  while ends[place] and ends[place] <= now do
    place = place + 1
  end
  if not ends[place] then
    error("the clock of a worker is behind the server's by more than a period of a quota; synchronize it", 0)
  end
  limit.kind, limit.step, limit.span, limit.kept = ring, ends[place] + 1, 0, PERIOD_KEPT_US
end
