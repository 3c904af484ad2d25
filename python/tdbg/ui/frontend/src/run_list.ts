/** The list of runs: names and states at once, and what is said of each as the server reads it. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getJson, type Params } from "./api";
import { onRing } from "./doorbell";
import { type Answer, useAnswer } from "./hooks";
import type { ListedRun, RunList, RunRecord, Setting } from "./types";

/** Of so many runs is asked at a time, the newest first; then of twice as many, up to the most. */
const AT_FIRST = 32;
const AT_ONCE = 256;

interface Records {
  common: Record<string, Setting>;
  runs: RunRecord[];
}

export interface AllRuns extends RunList {
  records: Map<string, RunRecord>;
  /** How many records are still to come. */
  missing: number;
  /** Asks for the list again: somebody has said something about a run, or deleted one. */
  renew: () => void;
}

/** Runs that are due are asked for one after the other, by a question for some of them. */
class Queue {
  private readonly due = new Set<string>();
  private size = AT_FIRST;
  private isAsking = false;

  constructor(private readonly ask: (some: string[]) => Promise<void>) {}

  add(ids: Iterable<string>): void {
    for (const id of ids) this.due.add(id);
    void this.go();
  }

  clear(): void {
    this.due.clear();
  }

  private async go(): Promise<void> {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      while (this.due.size) {
        const some = [...this.due].slice(0, this.size);
        await this.ask(some);
        for (const id of some) this.due.delete(id);
        this.size = Math.min(AT_ONCE, 2 * this.size);
      }
    } catch {
      // The server is gone: what is due is asked for when it rings again.
    }
    this.isAsking = false;
  }
}

function merged<T extends { id: string }>(before: Map<string, T>, found: T[]): Map<string, T> {
  return new Map([...before, ...found.map((each): [string, T] => [each.id, each])]);
}

export function useRunList(): Answer<AllRuns> {
  const [version, setVersion] = useState(0);
  const [told, tell] = useState(new Map<string, ListedRun>());
  const [records, record] = useState(new Map<string, RunRecord>());
  const answer = useAnswer<RunList>("runs", version, (signal) =>
    getJson<RunList>("runs", {}, signal),
  );
  const queues = useRef<{ short: Queue; record: Queue } | null>(null);
  if (!queues.current) {
    const of = (run: string[]): Params => ({ run });
    const records = new Queue(async (some) => {
      const { common, runs } = await getJson<Records>("records", of(some));
      const whole = runs.map((each) => ({
        ...each,
        last: each.last ?? {},
        best: each.best ?? {},
        settings: { ...common, ...each.settings },
      }));
      record((before) => merged(before, whole));
    });
    queues.current = {
      record: records,
      short: new Queue(async (some) => {
        const { runs } = await getJson<RunList>("runs", of(some));
        tell((before) => merged(before, runs));
        // What is wrong comes first, then the columns.
        records.add(some);
      }),
    };
  }
  const { short, record: full } = queues.current;
  useEffect(() => {
    const leave = onRing(({ runs, changed }) => {
      if (runs) setVersion((before) => before + 1);
      if (changed) short.add(Object.keys(changed));
    });
    return () => {
      leave();
      short.clear();
      full.clear();
    };
  }, []);
  useEffect(() => {
    const runs = answer.data?.runs ?? [];
    const known = runs.filter((run) => run.verdict);
    tell((before) => merged(before, known));
    short.add(runs.filter((run) => !run.verdict && !run.error).map((run) => run.id));
    full.add(known.filter((run) => !records.has(run.id)).map((run) => run.id));
  }, [answer.data]);
  const data = useMemo(() => {
    if (!answer.data) return null;
    const runs = answer.data.runs.map((run) => {
      const found = told.get(run.id);
      // What somebody said is newest in the list.
      return found ? { ...found, tags: run.tags, note: run.note, archived: run.archived } : run;
    });
    // Those in training first, then the newest, as they come.
    runs.sort((a, b) => Number(b.state === "running") - Number(a.state === "running"));
    const missing = runs.filter((run) => !run.error && !records.has(run.id)).length;
    const renew = () => setVersion((before) => before + 1);
    return { ...answer.data, runs, records, missing, renew };
  }, [answer.data, told, records]);
  return { ...answer, data };
}
