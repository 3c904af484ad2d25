/** Columns of the table of runs: which there are, what a run has in them, how it is read. */
import { ago, bytes, compareNames, count, number, percent } from "../format";
import type { ListedRun, RunRecord, Setting } from "../types";

/** A number or words; null: it is there and not finite; undefined: the run has none. */
export type Value = number | string | null | undefined;

export interface Column {
  /** How the address and a filter call it. */
  id: string;
  label: string;
  isNumber: boolean;
  of: (run: ListedRun) => Value;
  text: (run: ListedRun) => string;
  /** What it is, where the label does not say it. */
  title?: string;
}

/** So many settings are shown without being asked for. */
const MOST_SETTINGS = 5;
/** Longer words are no column. */
const LONGEST = 40;
/** What differs because the run is another one, not because somebody set it. */
const NO_SETTING =
  /(^|[._])(out|out_dir|path|dir|directory|file|pid|host|hostname|uuid|time|created|command|seed)$|^hook\.out/;
const HYPERPARAMETER = /^hyperparameters?[./]/;

const numeric = (
  run: (each: ListedRun) => number | null | undefined,
  text: (value: number) => string = number,
) => ({
  isNumber: true,
  of: run,
  text: (each: ListedRun) => {
    const value = run(each);
    return value === undefined || value === null ? "" : text(value);
  },
});

const words = (of: (each: ListedRun) => string | undefined) => ({
  isNumber: false,
  of,
  text: (each: ListedRun) => of(each) ?? "",
});

/** Seconds from the making of a run to its last step. */
function duration(run: ListedRun): number | undefined {
  return run.wall ? Math.max(0, run.wall - Date.parse(run.created) / 1000) : undefined;
}

function durationText(seconds: number): string {
  if (seconds < 100) return `${number(Number(seconds.toPrecision(2)))} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return `${number(Number((seconds / 3600).toPrecision(2)))} h`;
}

/** Of a run in a store, it is known when it has been read. */
const age = (run: ListedRun) =>
  run.created ? Date.now() / 1000 - Date.parse(run.created) / 1000 : undefined;

/** What every run has. */
export const PLAIN: Column[] = [
  { id: "name", label: "run", ...words((run) => run.name) },
  { id: "state", label: "state", ...words((run) => run.state) },
  {
    id: "verdict",
    label: "verdict",
    ...words((run) => run.verdict?.short ?? run.error),
  },
  {
    id: "loss",
    label: "loss",
    isNumber: true,
    of: (run) => (run.last_loss ? run.last_loss.value : undefined),
    text: (run) => run.last_loss?.text ?? "",
    title: "the last loss",
  },
  { id: "steps", label: "steps", ...numeric((run) => run.steps, count) },
  {
    id: "cost",
    label: "cost",
    ...numeric(
      (run) => (run.cost?.is_telling ? run.cost.share * 100 : undefined),
      (n) => percent(n / 100),
    ),
    title: "how much longer steps take because of capture, in per cent",
  },
  { id: "duration", label: "duration", ...numeric(duration, durationText), title: "in seconds" },
  { id: "age", label: "created", ...numeric(age, ago), title: "seconds since it was made" },
  { id: "rate", label: "steps/s", ...numeric((run) => run.rate) },
  { id: "size", label: "size", ...numeric((run) => run.bytes, bytes), title: "bytes on disk" },
  { id: "errors", label: "errors", ...numeric((run) => run.counts?.error, count) },
  { id: "warnings", label: "warnings", ...numeric((run) => run.counts?.warning, count) },
  { id: "tags", label: "tags", ...words((run) => run.tags?.join(" ")) },
  { id: "note", label: "note", ...words((run) => run.note) },
];

const NUMERAL = /^[-+]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

/** A setting as a value: a number that changed by its last bound, numerals as numbers. */
export function settingValue(setting: Setting | undefined): Value {
  if (setting === undefined) return undefined;
  if (Array.isArray(setting)) return setting[1];
  if (typeof setting === "string" && NUMERAL.test(setting))
    return Number(setting.replaceAll(",", ""));
  return setting;
}

function settingText(setting: Setting | undefined): string {
  if (setting === undefined) return "";
  if (Array.isArray(setting)) return `${number(setting[0])}–${number(setting[1])}`;
  return typeof setting === "number" ? number(setting) : setting;
}

/** All columns that these runs have. */
export class Columns {
  readonly all: Column[];
  /** Those that are shown where nobody has chosen any. */
  readonly usual: string[];
  /** Settings that are not the same in all runs, the most telling first. */
  readonly differing: Column[];
  /** Losses and metrics. */
  readonly metrics: string[];
  private readonly byName = new Map<string, Column>();

  constructor(runs: ListedRun[]) {
    const known = runs.flatMap((run) => run.record ?? []);
    this.metrics = namesOf(known, (each) => each.last);
    const measured = this.metrics.flatMap((name) => [
      measuredColumn("best", name),
      measuredColumn("last", name),
    ]);
    const names = namesOf(known, (each) => each.settings);
    const labels = shortLabels(names);
    const settings = names.map((name) => settingColumn(name, labels.get(name)!, known));
    this.differing = differing(settings, runs, known.length);
    this.all = [...PLAIN, ...measured, ...settings];
    const shown = this.differing.slice(0, MOST_SETTINGS).map((each) => each.id);
    const best = measured.filter((each) => each.id.startsWith("best.")).slice(0, 2);
    const usual = [...best.map((each) => each.id), ...shown];
    this.usual = ["name", "state", "verdict", "loss", ...usual, "steps", "cost", "age"];
    for (const each of this.all) {
      for (const name of [each.id, each.label.replaceAll(" ", "_")])
        if (!this.byName.has(name.toLowerCase())) this.byName.set(name.toLowerCase(), each);
    }
    for (const [name, label] of labels)
      if (!this.byName.has(label.toLowerCase()))
        this.byName.set(label.toLowerCase(), this.byName.get(name.toLowerCase())!);
  }

  find(name: string): Column | undefined {
    return this.byName.get(name.toLowerCase());
  }

  /** Columns by their ids; what is unknown, as in an old link, is left out. */
  named(ids: string[]): Column[] {
    return ids.flatMap((id) => this.find(id) ?? []);
  }

  get names(): string[] {
    return [...new Set(this.all.flatMap((each) => [each.label.replaceAll(" ", "_"), each.id]))];
  }
}

function namesOf<T>(known: RunRecord[], part: (record: RunRecord) => Record<string, T>): string[] {
  return [...new Set(known.flatMap((each) => Object.keys(part(each))))];
}

function measuredColumn(what: "best" | "last", name: string): Column {
  const of = (run: ListedRun) => run.record?.[what][name];
  return {
    id: `${what}.${name.replace(/ \((\w+)\)$/, "@$1").replaceAll(" ", "_")}`,
    label: `${what} ${shortMetric(name)}`,
    isNumber: true,
    of,
    text: (run) => {
      const value = of(run);
      if (value === undefined) return "";
      return value === null ? "NaN" : number(value);
    },
    title: `${what === "best" ? "the best" : "the last"} value of ${name}`,
  };
}

/** A metric's name where there is little room. */
export function shortMetric(name: string): string {
  return name
    .replace(/_output_0\b/, "")
    .replace(/^scalar\//, "")
    .replace("(EVAL)", "eval")
    .replace(/ eval$/, (tail) => (/val|test/i.test(name.slice(0, -6)) ? "" : tail));
}

function settingColumn(name: string, label: string, known: RunRecord[]): Column {
  const raw = (run: ListedRun) => run.record?.settings[name];
  const values = known.map((each) => settingValue(each.settings[name]));
  return {
    id: name.replaceAll(" ", "_"),
    label,
    isNumber: values.every((value) => typeof value !== "string"),
    of: (run) => settingValue(raw(run)),
    text: (run) => settingText(raw(run)),
    title: name,
  };
}

/** The last part of each path; where two have the same, more of them. */
function shortLabels(names: string[]): Map<string, string> {
  const found = new Map<string, string>();
  const ordered = [...names].sort((a, b) => Number(rank(a)) - Number(rank(b)));
  const taken = new Set(PLAIN.map((each) => each.label));
  for (const name of ordered) {
    const parts = name.split(/[./]/);
    let n = 1;
    while (n < parts.length && taken.has(parts.slice(-n).join("."))) n++;
    const label = parts.slice(-n).join(".");
    taken.add(label);
    found.set(name, label);
  }
  return found;
}

/** What somebody wrote down comes before what the optimizer says, and that before the rest. */
function rank(name: string): number {
  if (HYPERPARAMETER.test(name)) return 0;
  return name.startsWith("optimizer/") ? 1 : 2;
}

function differing(settings: Column[], runs: ListedRun[], nKnown: number): Column[] {
  const seen = new Set<string>();
  return settings
    .map((column) => ({ column, texts: runs.map((run) => column.text(run)) }))
    .filter(({ column, texts }) => {
      const distinct = new Set(texts.filter(Boolean));
      if (distinct.size < 2 || NO_SETTING.test(column.id)) return false;
      if (!column.isNumber && distinct.size === nKnown && nKnown > 3) return false;
      return [...distinct].every((text) => text.length <= LONGEST);
    })
    .sort((a, b) => rank(a.column.id) - rank(b.column.id))
    .filter(({ column, texts }) => {
      // The optimizer says the same as the hyperparameters: once is enough.
      const same = `${column.isNumber ? runs.map((run) => column.of(run)) : texts}`;
      return !seen.has(same) && seen.add(same);
    })
    .map(({ column }) => column);
}

/** Order of two values; a run that has none, or no number, comes last in both directions. */
export function ordered(a: Value, b: Value, isDown: boolean): number {
  const [isLess, isMore] = [a, b].map((each) => each === undefined || each === null || each === "");
  if (isLess || isMore) return Number(isLess) - Number(isMore);
  const order =
    typeof a === "number" && typeof b === "number" ? a - b : compareNames(String(a), String(b));
  return isDown ? -order : order;
}
