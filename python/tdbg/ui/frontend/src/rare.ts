/** What most visits do not need: it is a file of its own, which comes when it is first asked for. */
import { type Answer, useAnswer } from "./hooks";

type Rare = typeof import("./rare_screens");

export function useRare(isNeeded = true): Answer<Rare> {
  return useAnswer<Rare>(isNeeded ? "rare" : "", 0, () => import("./rare_screens"));
}
