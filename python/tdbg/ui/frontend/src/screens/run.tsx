import { count, plain, steps as stepsText } from "../format";
import { go, useRoute } from "../hooks";
import { Card, type Group, placeOf } from "../parts";
import { type Range, rangeOf, useTensors } from "../run_data";
import { Timeline } from "../timeline";
import type { Run } from "../types";
import { Facts } from "./facts";
import { Charts } from "./layers";
import { Verdict } from "./verdict";

export function RunScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const range = rangeOf(run, route);
  const tensors = useTensors(run);
  const open = (group: Group) =>
    group.findings.length > 1
      ? go({ run: run.id, screen: "findings", find: group.rule }, { fresh: true })
      : go(placeOf(run.id, group.findings[0], run.last_step), { fresh: true });
  return (
    <main class="run">
      <Verdict run={run} />
      {run.steps + run.evaluated > 0 && (
        <>
          <Card class="axis">
            <Timeline
              first={run.first_step ?? 0}
              end={(run.last_step ?? 0) + 1}
              from={range.from}
              to={range.to}
              findings={run.findings}
              changes={run.changes.filter((each) => each.state === "accepted")}
              onRange={range.set}
              onReset={range.reset}
              onFinding={open}
            />
            <RangeChip run={run} range={range} />
            {run.coverage.advice && (
              <p class="coverage">
                <b>Recorded:</b> {plain(run.coverage.text)}.{" "}
                <span class="soft">{plain(run.coverage.advice)}</span>
              </p>
            )}
          </Card>
          <Charts run={run} tensors={tensors} range={range} route={route} version={version} />
        </>
      )}
      <Facts run={run} />
    </main>
  );
}

function RangeChip({ run, range }: { run: Run; range: Range }) {
  if (range.isWhole)
    return (
      <p class="soft hint">
        Drag over the axis, the loss or the map to zoom in; double-click to show all steps.
      </p>
    );
  const behind = (run.last_step ?? 0) + 1 - range.to;
  return (
    <p class="soft hint">
      {stepsText(range.from, range.to - 1)}
      {!range.follows && behind > 0 && ` · +${count(behind)} steps since`}
      <button type="button" class="small" onClick={range.reset}>
        Show all steps
      </button>
    </p>
  );
}
