/** The list of runs: names and times at once, and what is said of each as the server reads it. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getJson } from "./api";
import { onRing } from "./doorbell";
import { type Answer, useAnswer } from "./hooks";
import type { ListedRun, RunList } from "./types";

/** Of so many runs is asked at a time, the newest first. */
const AT_ONCE = 32;

export function useRunList(): Answer<RunList> {
  const [version, setVersion] = useState(0);
  const [told, tell] = useState(new Map<string, ListedRun>());
  const due = useRef(new Set<string>());
  const isAsking = useRef(false);
  const answer = useAnswer<RunList>("runs", version, (signal) =>
    getJson<RunList>("runs", {}, signal),
  );
  const take = (runs: ListedRun[]) =>
    tell(
      (before) => new Map([...before, ...runs.map((run): [string, ListedRun] => [run.id, run])]),
    );
  const ask = async () => {
    if (isAsking.current) return;
    isAsking.current = true;
    try {
      while (due.current.size) {
        const some = [...due.current].slice(0, AT_ONCE);
        take((await getJson<RunList>("runs", { run: some })).runs);
        for (const id of some) due.current.delete(id);
      }
    } catch {
      // The server is gone: what is due is asked for when it rings again.
    }
    isAsking.current = false;
  };
  useEffect(() => {
    const leave = onRing(({ runs, changed }) => {
      if (runs) setVersion((before) => before + 1);
      for (const id in changed) due.current.add(id);
      void ask();
    });
    return () => {
      leave();
      due.current.clear();
    };
  }, []);
  useEffect(() => {
    const runs = answer.data?.runs ?? [];
    take(runs.filter((run) => run.state));
    for (const run of runs) if (!run.state) due.current.add(run.id);
    void ask();
  }, [answer.data]);
  const data = useMemo(() => {
    if (!answer.data) return null;
    const runs = answer.data.runs.map((run) => told.get(run.id) ?? run);
    // Those in training first, then the newest, as they come.
    runs.sort((a, b) => Number(b.state === "running") - Number(a.state === "running"));
    return { ...answer.data, runs };
  }, [answer.data, told]);
  return { ...answer, data };
}
