/** The table of runs: a row each, of columns that the reader chooses. */
import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { count, number, plain, shorten } from "../format";
import { Link, Mark, Scroll, Sparkline, State } from "../parts";
import { isJudged } from "../screens/verdict";
import type { ListedRun } from "../types";
import type { Column } from "./columns";
import { choose, type Group, type Selection, sortBy } from "./selection";

/** So many rows more are made when the last ones come into view. */
const MORE = 100;
/** Columns of words of any length. */
const WIDE = new Set(["name", "verdict", "note", "tags"]);

/** What comes into view while somebody scrolls is looked for once it stands still. */
const STILL_MS = 100;

export function RunTable({
  selection,
  prefer,
}: {
  selection: Selection;
  /** Takes the runs in view of which nothing was said yet. */
  prefer: (ids: string[]) => void;
}) {
  const { shown, groups, shownColumns, sort, chosen } = selection;
  const [most, setMost] = useState(MORE);
  const end = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    if (!end.current) return;
    const observer = new IntersectionObserver(
      ([entry]) => entry.isIntersecting && setMost((before) => before + MORE),
      { rootMargin: "600px" },
    );
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [most, shown.length]);
  useReading(shown.some(isUnread), prefer);
  const isAll = chosen.length > 0 && chosen.length === shown.length;
  let left = most;
  return (
    <Scroll label="Runs">
      <table class="run-table">
        <thead>
          <tr>
            <th scope="col" class="choice">
              <input
                type="checkbox"
                aria-label={isAll ? "Choose none" : `Choose all ${count(shown.length)}`}
                checked={isAll}
                ref={(box) => {
                  if (box) box.indeterminate = chosen.length > 0 && !isAll;
                }}
                onChange={() => choose(isAll ? [] : shown, shown)}
              />
            </th>
            {shownColumns.map((column) => (
              <Head key={column.id} column={column} sort={sort} />
            ))}
          </tr>
        </thead>
        <tbody class="run-list" onKeyDown={moveToRow}>
          {groups.map((group) => {
            const rows = group.runs.slice(0, Math.max(0, left));
            left -= rows.length;
            return (
              <>
                {group.label && rows.length > 0 && (
                  <GroupRow key={group.label} group={group} selection={selection} />
                )}
                {rows.map((run) => (
                  <Row key={run.id} run={run} selection={selection} />
                ))}
              </>
            );
          })}
          {shown.length > most && <tr ref={end} />}
        </tbody>
      </table>
    </Scroll>
  );
}

function isUnread(run: ListedRun): boolean {
  return !run.verdict && !run.error;
}

/** While some runs are not read yet, tells of those in view. */
function useReading(isReading: boolean, prefer: (ids: string[]) => void): void {
  useEffect(() => {
    if (!isReading) return;
    const look = () => {
      const rows = [...document.querySelectorAll<HTMLElement>(".run-row.unread")];
      const isInView = (row: HTMLElement) => {
        const { top, bottom } = row.getBoundingClientRect();
        return bottom > 0 && top < innerHeight;
      };
      prefer(rows.filter(isInView).map((row) => row.dataset.run!));
    };
    let due = 0;
    const soon = () => {
      clearTimeout(due);
      due = window.setTimeout(look, STILL_MS);
    };
    soon();
    addEventListener("scroll", soon, { passive: true });
    return () => {
      clearTimeout(due);
      removeEventListener("scroll", soon);
    };
  });
}

/** The arrow keys go from the name of a run to the next one. */
function moveToRow(event: KeyboardEvent): void {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const target = event.target as HTMLElement;
  if (!by || !target.matches(".run-link")) return;
  const links = [...document.querySelectorAll<HTMLElement>(".run-link")];
  event.preventDefault();
  links[links.indexOf(target) + by]?.focus();
}

/** Not by this column, by it, and by it from the greatest to the least. */
const ORDERS = [
  { order: "none", arrow: "" },
  { order: "ascending", arrow: "\u00a0↑" },
  { order: "descending", arrow: "\u00a0↓" },
] as const;

function isDown(sort: Selection["sort"], column: Column): boolean {
  return sort?.column === column && sort.isDown;
}

function Head({ column, sort }: { column: Column; sort: Selection["sort"] }) {
  const { order, arrow } = ORDERS[Number(sort?.column === column) + Number(isDown(sort, column))];
  return (
    <th scope="col" class={alignment(column)} aria-sort={order} title={column.title}>
      <button type="button" class="sorter" onClick={() => sortBy(column, sort)}>
        <Breakable text={plain(column.label)} />
        <span aria-hidden="true">{arrow}</span>
      </button>
    </th>
  );
}

/** A name that may go on in the next line where a word of it ends. */
function Breakable({ text }: { text: string }) {
  const words = text.split(/(?<=[a-z0-9][_/.])|(?<=[a-z0-9])(?=[A-Z])/);
  return (
    <>
      {words.map((word, i) => (
        <Fragment key={word + i}>
          {i > 0 && <wbr />}
          {word}
        </Fragment>
      ))}
    </>
  );
}

function alignment(column: Column): string {
  const name = WIDE.has(column.id) ? ` of-${column.id}` : "";
  return `${column.isNumber ? "of-numbers" : "of-words"}${name}`;
}

function GroupRow({ group, selection }: { group: Group; selection: Selection }) {
  const { shownColumns, shown, chosen, isChosen } = selection;
  const isAll = group.runs.every(isChosen);
  const others = chosen.filter((run) => !group.runs.includes(run));
  return (
    <tr class="run-group">
      <th class="choice">
        <input
          type="checkbox"
          aria-label={`Choose the ${group.runs.length} runs of ${plain(group.label)}`}
          checked={isAll}
          onChange={() => choose(isAll ? others : [...others, ...group.runs], shown)}
        />
      </th>
      {shownColumns.map((column, i) => (
        <th key={column.id} scope={i ? undefined : "rowgroup"} class={alignment(column)}>
          {i === 0 ? (
            <>
              {plain(group.label)} <span class="soft">{count(group.runs.length)}</span>
            </>
          ) : (
            <span class="soft">{summary(column, group.runs)}</span>
          )}
        </th>
      ))}
    </tr>
  );
}

/** What the runs of a group have in a column of numbers: the least and the greatest. */
function summary(column: Column, runs: ListedRun[]): string {
  if (!column.isNumber || column.id === "age") return "";
  const values = runs.map(column.of).filter((value) => typeof value === "number");
  if (!values.length) return "";
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  return least === greatest ? number(least) : `${number(least)}–${number(greatest)}`;
}

function Row({ run, selection }: { run: ListedRun; selection: Selection }) {
  const { shownColumns, shown, chosen, isChosen } = selection;
  const isOn = isChosen(run);
  const tone = run.verdict?.tone ?? (run.error ? "error" : "unread");
  return (
    <tr
      class={`run-row ${tone} ${run.archived ? "archived" : ""} ${isOn ? "chosen" : ""}`}
      data-run={run.id}
    >
      <td class="choice">
        <input
          type="checkbox"
          aria-label={`Choose ${plain(run.name)}`}
          checked={isOn}
          onChange={() =>
            choose(isOn ? chosen.filter((each) => each !== run) : [...chosen, run], shown)
          }
        />
      </td>
      {shownColumns.map((column) => (
        <td key={column.id} class={alignment(column)}>
          <Cell run={run} column={column} />
        </td>
      ))}
    </tr>
  );
}

function Cell({ run, column }: { run: ListedRun; column: Column }) {
  switch (column.id) {
    case "name":
      return <Name run={run} />;
    case "state":
      return run.state ? <State status={run.state} stopped={run.stopped} /> : null;
    case "verdict":
      return <Verdict run={run} />;
    case "loss":
      return <Loss run={run} />;
    case "tags":
      return <Tags run={run} />;
    default: {
      const text = column.text(run);
      return <span class={text === "NaN" ? "bad" : undefined}>{shorten(text, 60)}</span>;
    }
  }
}

function Name({ run }: { run: ListedRun }) {
  const name = <b>{shorten(run.name, 60)}</b>;
  return (
    <span class="run-name">
      {run.error ? (
        name
      ) : (
        <Link to={{ run: run.id }} class="run-link">
          {name}
        </Link>
      )}
      <Tags run={run} />
      {run.note && (
        <span class="soft run-note" title={plain(run.note)}>
          {shorten(run.note, 70)}
        </span>
      )}
    </span>
  );
}

function Tags({ run }: { run: ListedRun }) {
  return (
    <>
      {run.tags?.map((tag) => (
        <span key={tag} class="tag">
          {plain(tag)}
        </span>
      ))}
    </>
  );
}

function Verdict({ run }: { run: ListedRun }) {
  if (run.error) return <span class="run-what">{plain(run.error)}</span>;
  if (!run.verdict) return null;
  const judging = isJudged(run) && (
    <span class="soft">
      {run.judging!.state === "waiting" ? " waits to be judged" : " being judged"}
    </span>
  );
  return (
    <span class="run-verdict">
      <Mark tone={run.verdict.tone} />
      <span class="run-what">
        {plain(run.verdict.short)}
        {judging}
        {run.damaged_files > 0 && <span class="soft"> · damaged: {count(run.damaged_files)}</span>}
      </span>
    </span>
  );
}

function Loss({ run }: { run: ListedRun }) {
  if (!run.loss) return null;
  return (
    <span class="run-loss">
      <Sparkline spark={run.loss} label={`${plain(run.loss.name)} over ${run.counted_steps}`} />
      <b class={run.last_loss && run.last_loss.value === null ? "bad" : ""}>
        {run.last_loss?.text.replace("NaN or Inf", "NaN") ?? ""}
      </b>
    </span>
  );
}
