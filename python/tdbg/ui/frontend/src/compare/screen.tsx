/** Runs beside each other: where they part, their courses on one axis, and what differs. */
import { useMemo } from "preact/hooks";
import { getJson } from "../api";
import { series } from "../colors";
import { count, number, percent, plain, shorten } from "../format";
import type { Grid } from "../grid";
import { go, setCursor, setter, useAnswer, useRoute, type Answer, type Route } from "../hooks";
import { LineChart, type Line } from "../line_chart";
import { AxisChips, Card, Chips, Link, Mark, Notice, Select, State } from "../parts";
import { cursorOf, rangeOn, spans, useGrid, useRun, useTensors, type Range } from "../run_data";
import type { Run, Tensor } from "../types";
import { AXES, AXIS_NAMES, endOf, placeText, type By } from "./alignment";
import { RatioMap } from "./ratio_map";

const MOST_RUNS = 6;
const COLUMNS = 700;
const MAP_COLUMNS = 500;
const ROLES = ["gradient", "weight", "bias", "output", "input", "update", "optimizer_state"];
const FIELDS = ["rms", "l2", "abs_max", "std"] as const;
const PERCENTS = ["0", "1", "10", "50"] as const;
const PERCENT_NAMES = { 0: "at all", 1: "by 1 %", 10: "by 10 %", 50: "by half" };
/** A run that goes on is compared again when it is so many times as long. */
const AGAIN = 1.1;
/** How many times its least value the greatest of a course is that runs away. */
const FAR = 1e6;

/** A run of the comparison. */
interface Compared {
  run: Run;
  version: number;
  color: string;
}

export function CompareScreen() {
  const route = useRoute();
  const ids = [...new Set((route.runs ?? "").split(",").filter(Boolean))].slice(0, MOST_RUNS);
  // Hooks are called in the same order each time, whatever the number of runs.
  const padded = Array.from({ length: MOST_RUNS }, (_, i) => ids[i] ?? "");
  const answers = padded.map((id) => useRun(id));
  const runs = answers.flatMap((each, i): Compared[] => (ids[i] && each.data ? [{ run: each.data, version: each.version, color: series(i) }] : []));
  const by = AXES.includes(route.by as By) ? (route.by as By) : "step";
  if (ids.length < 2)
    return (
      <main>
        <Notice title="Choose two runs or more to compare">
          <Link to={{}}>All runs</Link>
        </Notice>
      </main>
    );
  const end = endOf(runs.map((each) => each.run), by);
  const range = rangeOn(0, end, route);
  // Two of them are divided by each other.
  const [a, b] = (route.pair ?? "").split(",").map((id) => runs.find((each) => each.run.id === id));
  const above = a ?? runs[0];
  const below = b && b !== above ? b : runs.find((each) => each !== above);
  return (
    <main class="compare">
      <header class="compare-head">
        <h1>
          {count(ids.length)} runs <span class="soft">beside each other</span>
        </h1>
        <div class="settings">
          <Chips label="Aligned by" options={AXES} value={by} names={AXIS_NAMES} onChange={(value) => go({ by: value === "step" ? undefined : value, from: undefined, to: undefined, at: undefined }, { quiet: true })} />
          {(range.from > 0 || !range.follows) && (
            <button type="button" class="small" onClick={range.reset}>
              Show all of {placeText(by, end)}
            </button>
          )}
        </div>
      </header>
      {answers.map((each, i) => ids[i] && each.error && !each.data && <Notice key={i} title="A run cannot be read" tone="error"><p>{plain(each.error.message)}</p></Notice>)}
      {above && below && <Parting above={above} below={below} by={by} route={route} />}
      <Curves runs={padded.map((id) => runs.find((each) => each.run.id === id))} by={by} range={range} route={route} />
      {above && below && <Tensors runs={padded.map((id) => runs.find((each) => each.run.id === id))} above={above} below={below} by={by} range={range} route={route} />}
      <Short runs={runs} />
      {runs.length > 1 && <Differences runs={runs} />}
    </main>
  );
}

interface Divergence {
  by: By;
  n_names: number;
  n_places: number;
  n_partings: number;
  partings: { name: string; place: number; deviation: number | null }[];
}

/** The first step at which the two differ, and in what. */
function Parting({ above, below, by, route }: { above: Compared; below: Compared; by: By; route: Route }) {
  const percentage = PERCENTS.includes(route.part as never) ? (route.part as (typeof PERCENTS)[number]) : "0";
  const shared = Math.min(above.run.steps, below.run.steps);
  const goes = [above.run, below.run].some((run) => run.status === "running");
  const stage = goes ? Math.floor(Math.log(shared + 1) / Math.log(AGAIN)) : `${above.run.version} ${below.run.version}`;
  const key = `${above.run.id} ${below.run.id} ${by} ${percentage} ${stage}`;
  const { data, error } = useAnswer<Divergence>(key, 0, (signal) => getJson<Divergence>("divergence", { run: above.run.id, other: below.run.id, by, percent: percentage }, signal));
  const first = data?.partings[0];
  const word = data?.by === "training" ? "training step" : "step";
  const names = data?.partings.filter((each) => each.place === first?.place) ?? [];
  const more = data ? data.n_partings - data.partings.length : 0;
  return (
    <Card title="Where they part" class="parting" aside={<Chips label="From which difference on" options={PERCENTS} value={percentage} names={PERCENT_NAMES} onChange={(value) => go({ part: value === "0" ? undefined : value }, { quiet: true })} />}>
      {error && !data ? (
        <p class="bad">{plain(error.message)}</p>
      ) : !data ? (
        <p class="soft">reading …</p>
      ) : !data.n_places || !data.n_names ? (
        <p>They have {data.n_names ? `no ${word}` : "no tensor and no scalar"} in common.</p>
      ) : !first ? (
        <p>
          <b>Nowhere</b>: {count(data.n_names)} tensors and scalars are {percentage === "0" ? "the same" : `within ${percentage} %`} at {count(data.n_places)} {word}s.
        </p>
      ) : (
        <>
          <p>
            <b>
              At {word} {count(first.place)}
            </b>
            , first in{" "}
            {names.slice(0, 3).map((each, i) => (
              <span key={each.name}>
                {i > 0 && ", "}
                <Name {...each} by={by} />
              </span>
            ))}
            {names.length > 3 && ` and ${more ? "others" : count(names.length - 3) + " more"}`}
            <span class="soft">; {count(data.n_partings)} of {count(data.n_names)} tensors and scalars part in {count(data.n_places)} {word}s.</span>
          </p>
          {data.partings.length > names.length && (
            <p class="soft">
              Then{" "}
              {data.partings.slice(names.length, names.length + 4).map((each, i) => (
                <span key={each.name}>
                  {i > 0 && ", "}
                  <Name {...each} by={by} /> at {count(each.place)}
                </span>
              ))}
              .
            </p>
          )}
        </>
      )}
    </Card>
  );
}

/** What parts: a click shows it. */
function Name({ name, place, deviation, by }: Divergence["partings"][0] & { by: By }) {
  const at = by === "time" ? undefined : String(place);
  const title = deviation === null ? "NaN or Inf in one of them alone" : `${percent(deviation)} apart`;
  return (
    <button type="button" class="plain" title={title} onClick={() => go(name.startsWith("scalar/") ? { curve: name, at } : { tensor: name, at }, { quiet: true })}>
      <code>{shorten(name, 48)}</code>
    </button>
  );
}

/** Lines of the runs that have an answer. */
function linesOf(runs: (Compared | undefined)[], grids: Answer<Grid>[]): Line[] {
  return runs.flatMap((each, i) => {
    const grid = grids[i].data;
    return each && grid ? [{ label: plain(each.run.name), color: each.color, grid }] : [];
  });
}

interface Shown {
  runs: (Compared | undefined)[];
  by: By;
  range: Range;
  route: Route;
}

function Curves({ runs, by, range, route }: Shown) {
  const known = runs.flatMap((each) => (each ? [each.run] : []));
  const key = known.map((run) => `${run.id}${run.curves.length}`).join();
  const shared = useMemo(() => (known.length ? known[0].curves.filter((name) => known.every((run) => run.curves.includes(name))) : []), [key]);
  const name = route.curve && shared.includes(route.curve) ? route.curve : shared[0];
  const grids = runs.map((each) => useGrid(each && name ? { path: "curve", run: each.run.id, name, by, from: range.from, to: range.to, most: COLUMNS } : null, each?.version ?? 0));
  const lines = linesOf(runs, grids);
  const isLog = isLogarithmic(lines, route);
  return (
    <Card
      title="Loss"
      aside={
        <div class="settings">
          {shared.length > 1 && (
            <Select label="Which curve" class="curves" options={shared} value={name} onChange={setter("curve", shared[0])} />
          )}
          <AxisChips isLog={isLog} />
        </div>
      }
    >
      {name ? <Chart lines={lines} title="Loss" by={by} range={range} route={route} log={isLog} /> : <div class="empty soft">{known.length ? "These runs share no loss and no scalar." : "reading …"}</div>}
      <Keys lines={lines} />
    </Card>
  );
}

function Chart({ lines, title, by, range, route, log }: { lines: Line[]; title: string; by: By; range: Range; route: Route; log: boolean }) {
  return (
    <LineChart
      key={by}
      lines={lines}
      title={title}
      from={range.from}
      to={range.to}
      log={log}
      height={280}
      cursor={cursorOf(route)}
      place={(n) => placeText(by, n)}
      onRange={range.set}
      onReset={range.reset}
      onCursor={setCursor}
    />
  );
}

/** A course that runs away would leave a line at the floor of all the others. */
function isLogarithmic(lines: Line[], route: Route): boolean {
  return route.axis ? route.axis === "log" : lines.some(({ grid }) => spans(grid) > FAR);
}

function Keys({ lines, without = [] }: { lines: Line[]; without?: string[] }) {
  return (
    <p class="reading">
      {lines.map((line) => (
        <span class="key" key={line.label}>
          <i style={{ background: line.color }} />
          {line.label} <em>{number(lastOf(line.grid))}</em>
        </span>
      ))}
      {without.length > 0 && <span class="soft">not in {without.join(", ")}</span>}
    </p>
  );
}

/** The map of the ratio, and the same tensor of all runs. */
function Tensors({ runs, above, below, by, range, route }: Shown & { above: Compared; below: Compared }) {
  const tensors = useTensors(above.run);
  const roles = ROLES.filter((role) => tensors.some((each) => each.role === role));
  const role = roles.includes(route.role ?? "") ? route.role! : roles[0];
  const field = FIELDS.find((each) => each === route.field) ?? "rms";
  const grid = useGrid(role ? { path: "ratio", run: above.run.id, other: below.run.id, role, field, by, from: range.from, to: range.to, most: MAP_COLUMNS } : null, above.version + below.version);
  const order = useMemo(() => tensors.filter((each) => each.role === role).map((each) => each.name), [tensors, role]);
  const isThere = tensors.some((each) => each.name === route.tensor);
  const tensor = isThere ? route.tensor! : (order[0] ?? "");
  const others = runs.flatMap((each) => (each ? [each] : []));
  const pair = (upper: string, lower: string) => go({ pair: upper === others[0].run.id && lower === others[1].run.id ? undefined : `${upper},${lower}` }, { quiet: true });
  if (!tensors.length) return null;
  return (
    <>
      <Card
        title={
          <>
            {shorten(above.run.name, 24)} / {shorten(below.run.name, 24)}, every layer
          </>
        }
        aside={
          <div class="settings">
            {others.length > 2 && (
              <>
                <RunSelect label="Divided" runs={others} value={above} onChange={(id) => pair(id, id === below.run.id ? above.run.id : below.run.id)} />
                <RunSelect label="By" runs={others.filter((each) => each !== above)} value={below} onChange={(id) => pair(above.run.id, id)} />
              </>
            )}
            <Chips label="Of what" options={roles} value={role} onChange={setter("role", roles[0])} />
            <Chips label="Statistic" options={FIELDS} value={field} onChange={setter("field", "rms")} />
          </div>
        }
      >
        {grid.data && grid.data.names.length ? (
          <RatioMap
            grid={grid.data}
            order={order}
            by={by}
            from={range.from}
            to={range.to}
            cursor={cursorOf(route)}
            label={(name) => name.replace(/^(gradient|update)\//, "")}
            names={[above.run.name, below.run.name]}
            onCursor={setCursor}
            onOpen={(name, place) => go({ tensor: name, at: String(place) }, { quiet: true })}
            onRange={range.set}
            onReset={range.reset}
          />
        ) : grid.error ? (
          <p class="bad">{plain(grid.error.message)}</p>
        ) : (
          <div class="empty soft">{grid.data ? "They have none of these tensors in common." : "reading …"}</div>
        )}
      </Card>
      <OneTensor runs={runs} by={by} range={range} route={route} tensor={tensor} tensors={tensors} field={field} />
    </>
  );
}

function RunSelect({ label, runs, value, onChange }: { label: string; runs: Compared[]; value: Compared; onChange: (id: string) => void }) {
  return (
    <Select label={label} options={runs.map(({ run }) => run.id)} names={Object.fromEntries(runs.map(({ run }) => [run.id, shorten(run.name, 30)]))} value={value.run.id} onChange={onChange} />
  );
}

function OneTensor({ runs, by, range, route, tensor, tensors, field }: Shown & { tensor: string; tensors: Tensor[]; field: string }) {
  const known = runs.map((each) => useTensors(each?.run ?? null));
  const has = runs.map((_, i) => known[i].some((each) => each.name === tensor));
  const without = runs.flatMap((each, i) => (each && known[i].length && !has[i] ? [plain(each.run.name)] : []));
  const grids = runs.map((each, i) => useGrid(each && has[i] ? { path: "envelope", run: each.run.id, name: tensor, field, by, from: range.from, to: range.to, most: COLUMNS } : null, each?.version ?? 0));
  const lines = linesOf(runs.map((each, i) => (has[i] ? each : undefined)), grids);
  return (
    <Card
      title="The same tensor"
      class="same-tensor"
      aside={
        <div class="settings">
          <input
            class="search"
            type="search"
            list="tensor-names"
            aria-label="Which tensor"
            value={tensor}
            spellcheck={false}
            onChange={(event) => go({ tensor: event.currentTarget.value || undefined }, { quiet: true })}
          />
          <datalist id="tensor-names">
            {tensors.map((each) => (
              <option key={each.name} value={each.name} />
            ))}
          </datalist>
        </div>
      }
    >
      <Chart lines={lines} title={`${field} of ${tensor}`} by={by} range={range} route={route} log={isLogarithmic(lines, route)} />
      <Keys lines={lines} without={without} />
    </Card>
  );
}

function Short({ runs }: { runs: Compared[] }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Runs in short">
      <table class="rows wide">
        <thead>
          <tr>
            <th>run</th>
            <th>state</th>
            <th>steps</th>
            <th>cost</th>
            <th>what is wrong</th>
          </tr>
        </thead>
        <tbody>
          {runs.map(({ run, color }) => (
            <tr key={run.id}>
              <td>
                <i class="swatch" style={{ background: color }} /> <Link to={{ run: run.id }}>{plain(run.name)}</Link>
              </td>
              <td>
                <State status={run.status} stopped={run.stopped} />
              </td>
              <td>{count(run.steps)}</td>
              <td>{run.cost === null ? "–" : `+${percent(run.cost)}`}</td>
              <td class="text">
                <Mark tone={run.verdict.tone} size={13} /> {plain(run.verdict.sentence.replace(/^[^.]*\. /, ""))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

type Told = string | number | [number, number] | null;
interface Differing {
  facts: { name: string; values: Told[] }[];
  settings: { name: string; values: Told[] }[];
  n_same: number;
  n_more: number;
}

/** What the runs were set up with, where it is not the same. */
function Differences({ runs }: { runs: Compared[] }) {
  const key = `differences ${runs.map(({ run }) => `${run.id} ${run.status} ${run.attempts} ${run.steps > 0}`).join()}`;
  const { data, error } = useAnswer<Differing>(key, 0, (signal) => getJson<Differing>("differences", { run: runs.map(({ run }) => run.id) }, signal));
  if (!data) return error ? <p class="bad">{plain(error.message)}</p> : null;
  return (
    <Card title="What is different" class="differences" aside={data.n_same > 0 && <span class="soft">{count(data.n_same)} settings are the same</span>}>
      {data.settings.length === 0 && <p>All settings that the runs tell are the same.</p>}
      <div class="scroll" tabIndex={0} role="region" aria-label="What is different">
        <table class="rows wide">
          <thead>
            <tr>
              <th>setting</th>
              {runs.map(({ run }) => (
                <th key={run.id}>{shorten(run.name, 30)}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {[...data.settings, ...data.facts].map(({ name, values }) => (
              <tr key={name}>
                <td class="text">{shorten(name, 60)}</td>
                {values.map((value, i) => (
                  <td key={i} class="text">
                    {told(value)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {data.n_more > 0 && <p class="soft">{count(data.n_more)} more are not listed.</p>}
    </Card>
  );
}

function told(value: Told): string {
  if (value === null) return "–";
  if (Array.isArray(value)) return `${number(value[0])} to ${number(value[1])}`;
  return typeof value === "number" ? number(value) : shorten(value, 120);
}

function lastOf(grid: Grid): number | null {
  for (let j = grid.columns - 1; j >= 0; j--) if (grid.rows[j]) return grid.mean[j];
  return null;
}
