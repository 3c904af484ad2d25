/** Data loaders: batches that were ready, and what other numbers of workers would give. */
import { useMemo } from "preact/hooks";
import { series } from "../colors";
import { count, number, percent, plain } from "../format";
import type { Grid } from "../grid";
import { LineChart } from "../line_chart";
import { Card, LineKeys, Scroll } from "../parts";
import type { Range } from "../run_data";
import type { Loader, WhatIf } from "./data";
import { duration } from "./words";

export function LoaderCards({
  loaders,
  depth,
  range,
  cursor,
}: {
  loaders: Loader[];
  depth: Grid | null;
  range: Range;
  cursor: number | undefined;
}) {
  const room = Math.max(0, ...loaders.map((each) => each.capacity));
  const lines = useMemo(
    () => (depth ? [{ label: "batches ready", color: series(0), grid: depth }] : []),
    [depth],
  );
  const limits = useMemo(
    () => (room ? [{ value: room, label: `room for ${count(room)}` }] : []),
    [room],
  );
  const first = loaders[0];
  // A training that fetches its batches itself has no queue.
  const hasQueue = loaders.some((each) => each.depth !== null);
  return (
    <Card title="Data loading" class="loading">
      <div class={first.what_if && hasQueue ? "pair" : ""}>
        <div>
          {depth && hasQueue && (
            <LineChart
              lines={lines}
              title="Batches that were ready when the training asked for one"
              from={range.from}
              to={range.to}
              log={false}
              height={200}
              limits={limits}
              least={0}
              cursor={cursor}
              onRange={range.set}
              onReset={range.reset}
            />
          )}
          <p class="reading soft">{queueText(first, hasQueue)}</p>
        </div>
        {first.what_if && <Workers curve={first.what_if} now={first.workers} said={first.said} />}
      </div>
      <Scroll label="Data loaders">
        <table>
          <thead>
            <tr>
              {[
                "loader",
                "batches",
                "workers",
                "ready",
                "wait",
                "wait 95 %",
                "fetch",
                "on a core",
              ].map((each) => (
                <th key={each}>{each}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {loaders.map((each) => (
              <tr key={each.loader}>
                <td>loader {each.loader}</td>
                <td>{count(each.n_batches)}</td>
                <td>{count(each.workers)}</td>
                <td>
                  {each.depth === null ? "not measured" : number(each.depth)}
                  {each.depth !== null && each.capacity > 0 && ` of ${count(each.capacity)}`}
                </td>
                <td>{duration(each.wait_ns[0])}</td>
                <td>{duration(each.wait_ns[1])}</td>
                <td>{each.fetch_ns[0] === null ? "not measured" : duration(each.fetch_ns[0])}</td>
                <td>
                  {each.fetch_cpu_share === null ? "not measured" : percent(each.fetch_cpu_share)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Card>
  );
}

function queueText(loader: Loader, hasQueue: boolean): string {
  if (hasQueue)
    return "Batches that were ready when the training asked for one. At 0, the training waits.";
  if (loader.workers > 0) return "Nobody counted the batches that were ready.";
  return "The loader has no workers: the training fetches each batch itself, and waits.";
}

/** How long a step would take by the number of workers. */
function Workers({ curve, now, said }: { curve: WhatIf; now: number; said: string }) {
  const lines = useMemo(() => {
    const values = Float32Array.from(curve.step_ns, (ns) => ns / 1e6);
    const n = values.length;
    const grid: Grid = {
      names: ["step"],
      start: 0,
      width: 1,
      columns: n,
      low: values,
      high: values,
      mean: values,
      rows: new Uint32Array(n).fill(1),
      bad: new Uint32Array(n),
      end: n,
      sure: n,
    };
    return [{ label: "ms a step", color: series(1), grid }];
  }, [curve]);
  const flags = useMemo(
    () => [
      { from: now, to: now + 1, color: series(4) },
      { from: curve.best, to: curve.best + 1, color: series(1) },
    ],
    [curve, now],
  );
  const keys = [
    { label: `now: ${count(now)}`, color: series(4) },
    { label: `enough: ${count(curve.best)}`, color: series(1) },
  ];
  return (
    <div class="what-if">
      <LineChart
        lines={lines}
        title="What if: milliseconds a step by the number of workers"
        from={0}
        to={curve.workers.length}
        log={false}
        height={200}
        gutter={56}
        flags={flags}
        least={0}
        place={(workers) => `${count(workers)}`}
      />
      <p class="reading">
        <LineKeys lines={keys} />
        <b>What if</b> {plain(said)}. <span class="soft">ms a step by the number of workers</span>
      </p>
    </div>
  );
}
