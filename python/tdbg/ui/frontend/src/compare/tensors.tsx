/** The map of the ratio of two runs, and the same tensor of all of them. */
import { useMemo } from "preact/hooks";
import { plain, shorten } from "../format";
import { go, setCursor, setter } from "../hooks";
import { EXTENT_COLUMNS } from "../layer_map";
import { Card, Chips, Pending, Select } from "../parts";
import { cursorOf, useGrid, useTensors } from "../run_data";
import type { Tensor } from "../types";
import { axisOfLines, Chart, COLUMNS, type Compared, Keys, linesOf, type Shown } from "./curves";
import { RatioMap } from "./ratio_map";

const MAP_COLUMNS = 500;

const ROLES = ["gradient", "weight", "bias", "output", "input", "update", "optimizer_state"];

const FIELDS = ["rms", "l2", "abs_max", "std"] as const;

/** The map of the ratio, and the same tensor of all runs. */
export function Tensors({
  runs,
  above,
  below,
  by,
  range,
  route,
}: Shown & { above: Compared; below: Compared }) {
  const tensors = useTensors(above.run);
  const roles = ROLES.filter((role) => tensors.some((each) => each.role === role));
  const role = roles.includes(route.role ?? "") ? route.role! : roles[0];
  const field = FIELDS.find((each) => each === route.field) ?? "rms";
  const ratio = { path: "ratio" as const, run: above.run.id, other: below.run.id, role, field, by };
  const grid = useGrid(
    role ? { ...ratio, from: range.from, to: range.to, most: MAP_COLUMNS } : null,
    above.version + below.version,
  );
  // The scale of colours stays what it is when the range changes.
  const whole = useGrid(
    role && !range.isWhole ? { ...ratio, ...range.whole, most: EXTENT_COLUMNS } : null,
    0,
  );
  const order = useMemo(
    () => tensors.filter((each) => each.role === role).map((each) => each.name),
    [tensors, role],
  );
  const isThere = tensors.some((each) => each.name === route.tensor);
  const tensor = isThere ? route.tensor! : (order[0] ?? "");
  const others = runs.flatMap((each) => (each ? [each] : []));
  const pair = (upper: string, lower: string) =>
    go(
      {
        pair:
          upper === others[0].run.id && lower === others[1].run.id
            ? undefined
            : `${upper},${lower}`,
      },
      { quiet: true },
    );
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
                <RunSelect
                  label="Divided"
                  runs={others}
                  value={above}
                  onChange={(id) => pair(id, id === below.run.id ? above.run.id : below.run.id)}
                />
                <RunSelect
                  label="By"
                  runs={others.filter((each) => each !== above)}
                  value={below}
                  onChange={(id) => pair(above.run.id, id)}
                />
              </>
            )}
            <Chips
              label="Of what"
              options={roles}
              value={role}
              onChange={setter("role", roles[0])}
            />
            <Chips
              label="Statistic"
              options={FIELDS}
              value={field}
              onChange={setter("field", "rms")}
            />
          </div>
        }
      >
        {grid.data?.names.length ? (
          <RatioMap
            grid={grid.data}
            whole={whole.data ?? grid.data}
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
        ) : (
          <div class="empty soft">
            {grid.data ? (
              "They have none of these tensors in common."
            ) : (
              <Pending error={grid.error} />
            )}
          </div>
        )}
      </Card>
      <OneTensor
        runs={runs}
        by={by}
        range={range}
        route={route}
        tensor={tensor}
        tensors={tensors}
        field={field}
      />
    </>
  );
}

function RunSelect({
  label,
  runs,
  value,
  onChange,
}: {
  label: string;
  runs: Compared[];
  value: Compared;
  onChange: (id: string) => void;
}) {
  return (
    <Select
      label={label}
      options={runs.map(({ run }) => run.id)}
      names={Object.fromEntries(runs.map(({ run }) => [run.id, shorten(run.name, 30)]))}
      value={value.run.id}
      onChange={onChange}
    />
  );
}

function OneTensor({
  runs,
  by,
  range,
  route,
  tensor,
  tensors,
  field,
}: Shown & { tensor: string; tensors: Tensor[]; field: string }) {
  const known = runs.map((each) => useTensors(each?.run ?? null));
  const has = runs.map((_, i) => known[i].some((each) => each.name === tensor));
  const without = runs.flatMap((each, i) =>
    each && known[i].length && !has[i] ? [plain(each.run.name)] : [],
  );
  const grids = runs.map((each, i) =>
    useGrid(
      each && has[i]
        ? {
            path: "envelope",
            run: each.run.id,
            name: tensor,
            field,
            by,
            from: range.from,
            to: range.to,
            most: COLUMNS,
          }
        : null,
      each?.version ?? 0,
    ),
  );
  const lines = linesOf(
    runs.map((each, i) => (has[i] ? each : undefined)),
    grids,
  );
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
            onChange={(event) =>
              go({ tensor: event.currentTarget.value || undefined }, { quiet: true })
            }
          />
          <datalist id="tensor-names">
            {tensors.map((each) => (
              <option key={each.name} value={each.name} />
            ))}
          </datalist>
        </div>
      }
    >
      <Chart
        lines={lines}
        title={`${field} of ${tensor}`}
        by={by}
        range={range}
        route={route}
        log={axisOfLines(lines, route).isLog}
      />
      <Keys lines={lines} axis={axisOfLines(lines, route)} without={without} />
    </Card>
  );
}
