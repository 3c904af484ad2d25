/** All runs: the state, the course of the loss, and what is wrong, a row each. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, number, percent, plain, shorten } from "../format";
import { go, useRoute } from "../hooks";
import { Link, Mark, Notice, Sparkline, State } from "../parts";
import type { ListedRun, RunList } from "../types";
import { isJudged } from "./verdict";

/** So many rows more are made when the last ones come into view. */
const MORE = 100;

/** Words that all must hold: state:running, finding:error, or a part of the name. */
function matches(run: ListedRun, filter: string): boolean {
  return filter
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => {
      const [key, value] = word.includes(":") ? word.split(":", 2) : ["", word];
      if (key === "state") return !!run.state?.startsWith(value);
      if (key === "finding") return (run.counts?.[value as "error"] ?? 0) > 0;
      return run.name.toLowerCase().includes(word);
    });
}

export function Runs({ list }: { list: RunList }) {
  const route = useRoute();
  const [chosen, setChosen] = useState<Set<string>>(new Set());
  const filter = route.find ?? "";
  const shown = useMemo(() => list.runs.filter((run) => matches(run, filter)), [list, filter]);
  const running = list.runs.filter((run) => run.state === "running").length;
  const sick = list.runs.filter((run) => run.counts?.error).length;
  const unread = list.runs.filter((run) => !run.state).length;
  const [most, setMost] = useState(MORE);
  const end = useRef<HTMLLIElement>(null);
  useEffect(() => {
    if (!end.current) return;
    const observer = new IntersectionObserver(
      ([entry]) => entry.isIntersecting && setMost((before) => before + MORE),
      { rootMargin: "600px" },
    );
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [most, shown.length]);
  if (!list.runs.length) return <NoRuns places={list.places} />;
  return (
    <main class="runs">
      <header class="runs-head">
        <h1>
          {count(list.runs.length)} run{list.runs.length > 1 && "s"}
          <span class="soft">
            {running ? `${count(running)} in training` : "none in training"} ·{" "}
            {sick ? `${count(sick)} with errors` : "no errors"}
            {unread > 0 && ` · reading ${count(unread)} more …`}
          </span>
        </h1>
        <div class="tools">
          {chosen.size > 1 && (
            <button
              type="button"
              class="filled"
              onClick={() =>
                go({ screen: "compare", runs: [...chosen].join(",") }, { fresh: true })
              }
            >
              Compare {chosen.size}
            </button>
          )}
          <input
            type="search"
            class="search"
            placeholder="Filter: name state:running finding:error"
            aria-label="Filter runs"
            value={filter}
            onInput={(event) =>
              go({ find: event.currentTarget.value || undefined }, { quiet: true })
            }
          />
        </div>
      </header>
      <ul class="run-list">
        {shown.slice(0, most).map((run) => (
          <li key={run.id} class={run.verdict?.tone ?? (run.error ? "error" : "unread")}>
            <input
              type="checkbox"
              aria-label={`Compare ${plain(run.name)}`}
              checked={chosen.has(run.id)}
              onChange={(event) => {
                const next = new Set(chosen);
                if (event.currentTarget.checked) next.add(run.id);
                else next.delete(run.id);
                setChosen(next);
              }}
            />
            <RunRow run={run} />
          </li>
        ))}
        {shown.length > most && <li ref={end} class="soft" />}
      </ul>
      {!shown.length && <p class="soft">No run matches.</p>}
    </main>
  );
}

/** A run in a line: what it is, how it does, and what is wrong. */
function RunRow({ run }: { run: ListedRun }) {
  if (run.error)
    return (
      <div class="run-row">
        <span class="run-name">{plain(run.name)}</span>
        <State status="unreadable" />
        <span class="run-what">{plain(run.error)}</span>
      </div>
    );
  const name = <b>{shorten(run.name, 90)}</b>;
  if (!run.state)
    return (
      <Link to={{ run: run.id }} class="run-row">
        <span />
        <span class="run-name">{name}</span>
      </Link>
    );
  const facts = [
    run.counted_steps,
    run.last_loss && `loss ${run.last_loss.text}`,
    run.state === "running" && run.rate && `${number(run.rate)}/s`,
    run.cost.is_telling && `cost +${percent(run.cost.share)}`,
    isJudged(run) && (run.judging!.state === "waiting" ? "waits to be judged" : "being judged"),
    run.damaged_files > 0 && `damaged: ${count(run.damaged_files)}`,
  ];
  const loss = run.loss && `${plain(run.loss.name)} over ${run.counted_steps}`;
  return (
    <Link to={{ run: run.id }} class="run-row">
      <Mark tone={run.verdict.tone} size={18} />
      <span class="run-name">
        {name}
        <span class="soft">{facts.filter(Boolean).join(" · ")}</span>
      </span>
      <State status={run.state} stopped={run.stopped} />
      <Sparkline spark={run.loss} label={loss || "no loss"} />
      <span class="run-what">{plain(run.verdict.short)}</span>
    </Link>
  );
}

function NoRuns({ places }: { places: string[] }) {
  return (
    <main>
      <Notice title="No run yet" tone="starting">
        <p>
          Looking in <code>{places.map(plain).join(", ")}</code>. A run appears here as soon as a
          training begins:
        </p>
        <pre>{`import tdbg.pytorch as td

with td.watch(model, criterion, out="runs/first"):
    train()`}</pre>
        <p>
          or, without changing your script, <code>tdbg run -- python train.py</code>
        </p>
      </Notice>
    </main>
  );
}
