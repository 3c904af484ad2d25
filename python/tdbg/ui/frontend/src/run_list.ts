/** The list of runs: names and states at once, and what is said of each as the server reads it. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getJson, getLines } from "./api";
import { onRing } from "./doorbell";
import { type Answer, useAnswer } from "./hooks";
import type { ListedRun, RunList, RunRows } from "./types";

/** Of so many runs is asked at a time. */
const AT_ONCE = 2000;

/** What is on the screen waits for so many runs, and not for all. */
const SOON = 64;

export interface AllRuns extends RunList {
  /** Asks for the list again: somebody has said something about a run, or deleted one. */
  renew: () => void;
  /** Somebody looks at these runs, of which nothing was said yet. */
  prefer: (ids: string[]) => void;
}

/** Runs that are due are asked for by one question after the other. */
class Queue {
  private readonly due = new Set<string>();
  /** Those of the question that is being answered, in its order. */
  private readonly waiting = new Set<string>();
  private asking: AbortController | null = null;

  constructor(
    private readonly tell: (some: ListedRun[]) => void,
    private readonly failed: () => void,
  ) {}

  add(ids: Iterable<string>): void {
    for (const id of ids) this.due.add(id);
    void this.go();
  }

  /** What somebody looks at is asked for besides, unless its turn comes soon. */
  async prefer(ids: string[]): Promise<void> {
    const soon = [...this.waiting].slice(0, SOON);
    const late = ids.filter((id) => this.waiting.has(id) && !soon.includes(id));
    for (const id of late) this.waiting.delete(id);
    if (late.length && this.asking) await this.ask(late, this.asking.signal).catch(() => {});
  }

  end(): void {
    this.due.clear();
    this.asking?.abort();
  }

  private async go(): Promise<void> {
    if (this.asking) return;
    this.asking = new AbortController();
    try {
      while (this.due.size) {
        const run = [...this.due].slice(0, AT_ONCE);
        // Whatever changes from now on is due again.
        for (const id of run) {
          this.due.delete(id);
          this.waiting.add(id);
        }
        await this.ask(run, this.asking.signal);
      }
    } catch {
      // The server is gone: the list comes again when it rings.
      this.failed();
    }
    this.waiting.clear();
    this.asking = null;
  }

  private async ask(run: string[], signal: AbortSignal): Promise<void> {
    for await (const part of getLines<RunRows>("rows_of_runs", { run }, signal)) {
      for (const { id } of part.runs) this.waiting.delete(id);
      this.tell(whole(part));
    }
  }
}

/** Rows with all of their settings. */
function whole({ common, runs }: RunRows): ListedRun[] {
  return runs.map((run) => {
    const { record } = run;
    if (!record) return run;
    return { ...run, record: { ...record, settings: { ...common, ...record.settings } } };
  });
}

function byAge(a: ListedRun, b: ListedRun): number {
  return a.created < b.created ? 1 : Number(a.created > b.created) * -1;
}

export function useRunList(): Answer<AllRuns> {
  const [version, setVersion] = useState(0);
  const [told, setTold] = useState(new Map<string, ListedRun>());
  /** Which list is held or comes; none whose states may be old. */
  const listing = useRef(Promise.resolve(""));
  const answer = useAnswer<RunList>("runs", version, async (signal) => {
    const asked = getJson<RunList>("runs", {}, signal);
    listing.current = asked.then(
      (found) => found.listing,
      () => "",
    );
    const found = await asked;
    return { ...found, runs: whole(found) };
  });
  const forget = () => {
    listing.current = Promise.resolve("");
  };
  const tell = (some: ListedRun[]) =>
    setTold((before) => {
      const after = new Map(before);
      for (const run of some) after.set(run.id, run);
      return after;
    });
  const queue = useRef<Queue | null>(null);
  queue.current ??= new Queue(tell, forget);
  const due = queue.current;
  useEffect(() => {
    const leave = onRing(async ({ listing: now, changed }) => {
      if (changed) due.add(Object.keys(changed));
      if (now && now !== (await listing.current)) setVersion((before) => before + 1);
    });
    // Nobody has told a hidden page of changes.
    document.addEventListener("visibilitychange", forget);
    return () => {
      leave();
      due.end();
      document.removeEventListener("visibilitychange", forget);
    };
  }, []);
  useEffect(() => {
    const runs = answer.data?.runs ?? [];
    // What the list itself says is newer than what was told before.
    const known = runs.filter((run) => run.verdict && told.has(run.id));
    if (known.length) tell(known);
    due.add(runs.filter((run) => !run.verdict && !run.error).map((run) => run.id));
  }, [answer.data]);
  const data = useMemo(() => {
    if (!answer.data) return null;
    const runs = answer.data.runs.map((run) => {
      const found = told.get(run.id);
      // What somebody said is newest in the list.
      return found ? { ...found, tags: run.tags, note: run.note, archived: run.archived } : run;
    });
    // Those in training first, then the newest, as they come.
    const isRunning = (run: ListedRun) => Number(run.state === "running");
    runs.sort((a, b) => isRunning(b) - isRunning(a) || byAge(a, b));
    const renew = () => setVersion((before) => before + 1);
    return { ...answer.data, runs, renew, prefer: (ids: string[]) => void due.prefer(ids) };
  }, [answer.data, told]);
  return { ...answer, data };
}
