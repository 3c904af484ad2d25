/** Which runs of the list are shown, chosen and in which order: all of it is in the address. */
import { useMemo } from "preact/hooks";
import { adjust, type Route } from "../hooks";
import type { AllRuns } from "../run_list";
import type { ListedRun } from "../types";
import { type Column, Columns, ordered, type Value } from "./columns";
import { Misread, parse } from "./filter";

export interface Group {
  /** What its runs have in common; empty where they are not grouped. */
  label: string;
  runs: ListedRun[];
}

export interface Selection {
  columns: Columns;
  shownColumns: Column[];
  /** What the filter finds, in order. */
  shown: ListedRun[];
  groups: Group[];
  /** What is wrong with the filter; all runs are shown meanwhile. */
  misread: Misread | null;
  /** Those that somebody chose, of those that are shown. */
  chosen: ListedRun[];
  isChosen: (run: ListedRun) => boolean;
  sort: { column: Column; isDown: boolean } | null;
  /** Runs that are put away, and not shown. */
  nArchived: number;
}

export function useSelection(list: AllRuns, route: Route): Selection {
  const columns = useMemo(() => new Columns(list.runs), [list.runs]);
  const found = useMemo(
    () => filtered(list.runs, route.find ?? "", columns),
    [list.runs, route.find, columns],
  );
  return useMemo(() => {
    const ids = (route.cols ?? "").split(",").filter(Boolean);
    const shownColumns = columns.named(ids.length ? ids : columns.usual);
    const sort = sortOf(route.sort, columns);
    const shown = sort
      ? [...found.runs].sort((a, b) => ordered(sort.column.of(a), sort.column.of(b), sort.isDown))
      : found.runs;
    const isAll = route.sel === "*";
    const wanted = new Set((route.sel ?? "").split(",").filter(Boolean));
    const isChosen = (run: ListedRun) => isAll || wanted.has(run.id);
    return {
      columns,
      shownColumns,
      shown,
      groups: grouped(shown, columns.find(route.group ?? "")),
      misread: found.misread,
      chosen: shown.filter(isChosen),
      isChosen,
      sort,
      nArchived: found.nArchived,
    };
  }, [columns, found, route.cols, route.sort, route.sel, route.group]);
}

interface Found {
  runs: ListedRun[];
  misread: Misread | null;
  nArchived: number;
}

function filtered(runs: ListedRun[], text: string, columns: Columns): Found {
  let misread: Misread | null = null;
  let test = (_: ListedRun) => true;
  try {
    test = parse(text, columns);
  } catch (error) {
    if (!(error instanceof Misread)) throw error;
    misread = error;
  }
  // Whoever asks for runs that were put away sees them.
  const isAsked = /\bis\s*[:=]\s*"?archived/i.test(text);
  const found = runs.filter(test);
  const kept = isAsked ? found : found.filter((run) => !run.archived);
  return { runs: kept, misread, nArchived: found.length - kept.length };
}

function sortOf(text: string | undefined, columns: Columns): Selection["sort"] {
  const isDown = text?.startsWith("-") ?? false;
  const column = text ? columns.find(isDown ? text.slice(1) : text) : undefined;
  return column ? { column, isDown } : null;
}

function grouped(runs: ListedRun[], column: Column | undefined): Group[] {
  if (!column) return [{ label: "", runs }];
  const found = new Map<string, { value: Value; runs: ListedRun[] }>();
  for (const run of runs) {
    const text = column.text(run);
    const group = found.get(text);
    if (group) group.runs.push(run);
    else found.set(text, { value: column.of(run), runs: [run] });
  }
  return [...found]
    .sort(([, a], [, b]) => ordered(a.value, b.value, false))
    .map(([text, { runs }]) => ({ label: `${column.label} ${text || "–"}`, runs }));
}

/** Choose runs: all that are shown need no names in the address. */
export function choose(runs: ListedRun[], shown: ListedRun[]): void {
  const ids = runs.map((run) => run.id);
  const isAll = ids.length > 1 && ids.length === shown.length;
  adjust({ sel: isAll ? "*" : ids.join(",") || undefined });
}

/** The next order of a column: of numbers the least first, then the greatest, then as they came. */
export function sortBy(column: Column, now: Selection["sort"]): void {
  if (now?.column !== column) adjust({ sort: column.id });
  else adjust({ sort: now.isDown ? undefined : `-${column.id}` });
}
