/** All runs: a table, their curves, what they differ in, and the herd that healthy ones are. */
import { useState } from "preact/hooks";
import { count, plain } from "../format";
import { adjust, go, type Route, useRoute } from "../hooks";
import { Chips, Notice, Select } from "../parts";
import type { AllRuns } from "../run_list";
import type { ListedRun } from "../types";
import { RunCharts } from "./charts";
import type { Columns } from "./columns";
import { HerdView } from "./herd";
import { ArchiveButton, DeleteButton, TagButton } from "./keep";
import { Parallel } from "./parallel";
import { SaveRuns } from "./save_runs";
import { choose, type Selection, useSelection } from "./selection";
import { RunTable } from "./table";

const VIEWS = ["table", "charts", "parallel", "herd"] as const;
type View = (typeof VIEWS)[number];
const VIEW_NAMES: Record<View, string> = {
  table: "Table",
  charts: "Charts",
  parallel: "Parameters",
  herd: "Herd",
};
const MOST_COMPARED = 6;
/** Charts of more runs are asked for in no one's screen. */
const MOST_DRAWN = 100;

export function Runs({ list }: { list: AllRuns }) {
  const route = useRoute();
  const selection = useSelection(list, route);
  const view = VIEWS.includes(route.view as View) ? (route.view as View) : "table";
  if (!list.runs.length) return <NoRuns places={list.places} />;
  const { shown, chosen } = selection;
  const readable = (chosen.length ? chosen : shown).filter((run) => run.verdict && !run.error);
  const drawn = readable.slice(0, MOST_DRAWN);
  return (
    <main class="runs">
      <header class="runs-head">
        <h1>
          {count(list.runs.length)} run{list.runs.length > 1 && "s"}
          <Facts list={list} selection={selection} />
        </h1>
        <Chips
          label="View"
          options={VIEWS}
          value={view}
          names={VIEW_NAMES}
          onChange={(value) => adjust({ view: value === "table" ? undefined : value })}
        />
      </header>
      {list.troubles.map((each) => (
        <p key={each} class="filter-says" role="status">
          {plain(each)}
        </p>
      ))}
      <div class="run-tools">
        <Filter selection={selection} route={route} />
        {view === "table" && <TableTools selection={selection} route={route} />}
        <Actions list={list} selection={selection} />
      </div>
      {view !== "table" && (
        <p class="soft drawn-of">
          {chosen.length ? `${count(chosen.length)} chosen` : `all ${count(shown.length)} shown`}
          {drawn.length < readable.length && ` · the first ${MOST_DRAWN} are drawn: choose others`}
        </p>
      )}
      {view === "table" && shown.length > 0 && (
        <RunTable selection={selection} prefer={list.prefer} />
      )}
      {view === "charts" && <RunCharts runs={drawn} selection={selection} route={route} />}
      {view === "parallel" && <Parallel runs={drawn} selection={selection} route={route} />}
      {view === "herd" && <HerdView runs={drawn} route={route} />}
      {!shown.length && <p class="soft">No run matches.</p>}
    </main>
  );
}

function Facts({ list, selection }: { list: AllRuns; selection: Selection }) {
  const n = (test: (run: ListedRun) => unknown) => list.runs.filter(test).length;
  const running = n((run) => run.state === "running");
  const sick = n((run) => run.counts?.error);
  const unread = n((run) => !run.verdict && !run.error);
  const facts = [
    running ? `${count(running)} in training` : "none in training",
    sick ? `${count(sick)} with errors` : "no errors",
    selection.shown.length < list.runs.length && `${count(selection.shown.length)} shown`,
    selection.nArchived > 0 && `${count(selection.nArchived)} put away`,
    unread > 0 && `reading ${count(unread)} more …`,
  ];
  return <span class="soft">{facts.filter(Boolean).join(" · ")}</span>;
}

/** The filter, and where it cannot be read. */
function Filter({ selection, route }: { selection: Selection; route: Route }) {
  const text = route.find ?? "";
  const { misread } = selection;
  const end = misread ? misread.at + misread.length : 0;
  return (
    <div class="run-filter">
      <input
        type="search"
        class="search"
        placeholder="Filter: name lr<0.1 loss<0.5 state:running"
        aria-label="Filter runs"
        aria-invalid={!!misread}
        aria-describedby="filter-says"
        spellcheck={false}
        autocomplete="off"
        value={text}
        onInput={(event) => adjust({ find: event.currentTarget.value || undefined })}
        onKeyDown={(event) => {
          const first = document.querySelector<HTMLElement>(".run-link");
          if (event.key !== "ArrowDown" || !first) return;
          event.preventDefault();
          first.focus();
        }}
      />
      <p id="filter-says" class="filter-says" role="status">
        {misread && (
          <>
            <code>
              {plain(text.slice(0, misread.at))}
              <mark>{plain(text.slice(misread.at, end)) || "▁"}</mark>
              {plain(text.slice(end))}
            </code>{" "}
            {plain(misread.message)}
          </>
        )}
      </p>
    </div>
  );
}

function TableTools({ selection, route }: { selection: Selection; route: Route }) {
  const { columns } = selection;
  const groups = ["", ...["state", "tags"], ...columns.differing.map((each) => each.id)];
  const names = Object.fromEntries(
    groups.map((id) => [id, id ? `group by ${columns.find(id)?.label ?? id}` : "no groups"]),
  );
  return (
    <>
      <Select
        label="Group by"
        options={groups}
        names={names}
        value={columns.find(route.group ?? "")?.id ?? ""}
        onChange={(value) => adjust({ group: value || undefined })}
      />
      <ColumnPicker columns={columns} route={route} />
      <SaveRuns selection={selection} />
    </>
  );
}

/** Which columns the table has. */
function ColumnPicker({ columns, route }: { columns: Columns; route: Route }) {
  const [find, setFind] = useState("");
  const shown = (route.cols ?? "").split(",").filter(Boolean);
  const now = shown.length ? shown : columns.usual;
  const set = (ids: string[]) => adjust({ cols: ids.length ? ids.join(",") : undefined });
  const found = columns.all.filter((each) =>
    `${each.label} ${each.id}`.toLowerCase().includes(find.toLowerCase()),
  );
  return (
    <details class="menu">
      <summary>Columns</summary>
      <div class="menu-body">
        <input
          type="search"
          aria-label="Find a column"
          placeholder="Find a column"
          value={find}
          onInput={(event) => setFind(event.currentTarget.value)}
        />
        <ul>
          {found.map((each) => (
            <li key={each.id}>
              <label class="check">
                <input
                  type="checkbox"
                  checked={now.includes(each.id)}
                  onChange={(event) =>
                    set(
                      event.currentTarget.checked
                        ? [...now, each.id]
                        : now.filter((id) => id !== each.id),
                    )
                  }
                />
                {plain(each.label)}
                {each.title && <span class="soft">{plain(each.title)}</span>}
              </label>
            </li>
          ))}
        </ul>
        <button type="button" class="small" disabled={!shown.length} onClick={() => set([])}>
          The usual ones
        </button>
      </div>
    </details>
  );
}

/** What can be done with the runs that are chosen. */
function Actions({ list, selection }: { list: AllRuns; selection: Selection }) {
  const { chosen, shown } = selection;
  if (!chosen.length) return null;
  const comparable = chosen.filter((run) => !run.error);
  // The page changes runs of the server's machine.
  const near = chosen.filter((run) => !run.is_far);
  return (
    <div class="run-actions">
      <span class="soft">{count(chosen.length)} chosen</span>
      {comparable.length > 1 && (
        <button
          type="button"
          class="filled"
          disabled={comparable.length > MOST_COMPARED}
          title={
            comparable.length > MOST_COMPARED
              ? `At most ${MOST_COMPARED} runs are compared side by side: Charts shows more`
              : undefined
          }
          onClick={() =>
            go(
              { screen: "compare", runs: comparable.map((run) => run.id).join(",") },
              { fresh: true },
            )
          }
        >
          Compare {comparable.length}
        </button>
      )}
      {list.may_control && near.length > 0 && (
        <>
          <TagButton runs={near} renew={list.renew} />
          <ArchiveButton runs={near} renew={list.renew} />
          <DeleteButton runs={near} renew={list.renew} />
        </>
      )}
      <button type="button" class="small" onClick={() => choose([], shown)}>
        Choose none
      </button>
    </div>
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
