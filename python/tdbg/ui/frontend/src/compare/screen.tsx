import { series } from "../colors";
import { count, plain } from "../format";
import { go, useRoute } from "../hooks";
import { Chips, Link, Notice } from "../parts";
import { rangeOn, useRun } from "../run_data";
import { AXES, AXIS_NAMES, type By, endOf, placeText, startOf } from "./alignment";
import { type Compared, Curves } from "./curves";
import { DivergencePoints } from "./divergence";
import { Differences, Short } from "./tables";
import { Tensors } from "./tensors";

const MOST_RUNS = 6;

export function CompareScreen() {
  const route = useRoute();
  const ids = [...new Set((route.runs ?? "").split(",").filter(Boolean))].slice(0, MOST_RUNS);
  // Hooks are called in the same order each time, whatever the number of runs.
  const padded = Array.from({ length: MOST_RUNS }, (_, i) => ids[i] ?? "");
  const answers = padded.map((id) => useRun(id));
  const runs = answers.flatMap((each, i): Compared[] =>
    ids[i] && each.data ? [{ run: each.data, version: each.version, color: series(i) }] : [],
  );
  const by = AXES.includes(route.by as By) ? (route.by as By) : "step";
  if (ids.length < 2)
    return (
      <main>
        <Notice title="Choose two or more runs to compare">
          <Link to={{}}>All runs</Link>
        </Notice>
      </main>
    );
  const known = runs.map((each) => each.run);
  const end = endOf(known, by);
  const range = rangeOn(startOf(known, by), end, route);
  // Two of them are divided by each other.
  const [a, b] = (route.pair ?? "").split(",").map((id) => runs.find((each) => each.run.id === id));
  const above = a ?? runs[0];
  const below = b && b !== above ? b : runs.find((each) => each !== above);
  return (
    <main class="compare">
      <header class="compare-head">
        <h1>
          {count(ids.length)} runs <span class="soft">side by side</span>
        </h1>
        <div class="settings">
          <Chips
            label="Aligned by"
            options={AXES}
            value={by}
            names={AXIS_NAMES}
            onChange={(value) =>
              go(
                {
                  by: value === "step" ? undefined : value,
                  from: undefined,
                  to: undefined,
                  at: undefined,
                },
                { quiet: true },
              )
            }
          />
          {!range.isWhole && (
            <button type="button" class="small" onClick={range.reset}>
              Show all of {placeText(by, end)}
            </button>
          )}
        </div>
      </header>
      {answers.map(
        (each, i) =>
          ids[i] &&
          each.error &&
          !each.data && (
            <Notice key={i} title="A run cannot be read" tone="error">
              <p>{plain(each.error.message)}</p>
            </Notice>
          ),
      )}
      {above && below && <DivergencePoints above={above} below={below} by={by} route={route} />}
      <Curves
        runs={padded.map((id) => runs.find((each) => each.run.id === id))}
        by={by}
        range={range}
        route={route}
      />
      {above && below && (
        <Tensors
          runs={padded.map((id) => runs.find((each) => each.run.id === id))}
          above={above}
          below={below}
          by={by}
          range={range}
          route={route}
        />
      )}
      <Short runs={runs} />
      {runs.length > 1 && <Differences runs={runs} />}
    </main>
  );
}
