import { plain } from "../format";
import { useRoute } from "../hooks";
import { Card } from "../parts";
import { rangeOf, useTensors } from "../run_data";
import { StepAxis } from "../step_axis";
import type { Run } from "../types";
import { Facts } from "./facts";
import { Charts } from "./layers";
import { Verdict } from "./verdict";

export function RunScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const range = rangeOf(run, route);
  const tensors = useTensors(run);
  return (
    <main class="run">
      <Verdict run={run} />
      {run.steps + run.evaluated > 0 && (
        <>
          <Card class="axis">
            <StepAxis run={run} range={range} findings={run.findings} />
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
