/** The axis of steps of a screen, with findings as flags, and the range that is shown. */
import { count, steps as stepsText } from "./format";
import { go } from "./hooks";
import { type Group, placeOf } from "./parts";
import type { Range } from "./run_data";
import { Timeline } from "./timeline";
import type { Finding, Run } from "./types";

interface Shown {
  run: Run;
  range: Range;
  findings: Finding[];
}

export function StepAxis(shown: Shown) {
  return (
    <>
      <FindingsAxis {...shown} />
      <RangeChip run={shown.run} range={shown.range} />
    </>
  );
}

/** The axis alone. */
export function FindingsAxis({ run, range, findings }: Shown) {
  const open = (group: Group) =>
    group.findings.length > 1
      ? go({ run: run.id, screen: "findings", find: group.rule }, { fresh: true })
      : go(placeOf(run.id, group.findings[0], run.last_step), { fresh: true });
  return (
    <Timeline
      first={run.first_step ?? 0}
      end={(run.last_step ?? 0) + 1}
      from={range.from}
      to={range.to}
      findings={findings}
      changes={run.changes.filter((each) => each.state === "accepted")}
      onRange={range.set}
      onReset={range.reset}
      onFinding={open}
    />
  );
}

function RangeChip({ run, range }: { run: Run; range: Range }) {
  if (range.isWhole)
    return (
      <p class="soft hint">
        Drag over the axis, a line chart or a map to zoom in; double-click to show all steps.
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
