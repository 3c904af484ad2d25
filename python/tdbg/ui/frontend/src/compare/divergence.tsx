import { getJson } from "../api";
import { count, counted, percent, shorten } from "../format";
import { go, type Route, useAnswer } from "../hooks";
import { Card, Chips, Pending } from "../parts";
import type { By } from "./alignment";
import type { Compared } from "./curves";

const PERCENTS = ["0", "1", "10", "50"] as const;

const PERCENT_NAMES = { 0: "at all", 1: "by 1 %", 10: "by 10 %", 50: "by half" };

/** Compare a live run again when it has grown by this factor. */
const AGAIN = 1.1;

interface Divergence {
  by: By;
  n_names: number;
  n_places: number;
  n_points: number;
  points: { name: string; place: number; deviation: number | null }[];
}

/** The first step at which two runs diverge, and in which tensors. */
export function DivergencePoints({
  above,
  below,
  by,
  route,
}: {
  above: Compared;
  below: Compared;
  by: By;
  route: Route;
}) {
  const percentage = PERCENTS.includes(route.differ as never)
    ? (route.differ as (typeof PERCENTS)[number])
    : "0";
  const shared = Math.min(above.run.steps, below.run.steps);
  const goes = [above.run, below.run].some((run) => run.state === "running");
  const stage = goes
    ? Math.floor(Math.log(shared + 1) / Math.log(AGAIN))
    : `${above.run.version} ${below.run.version}`;
  const key = `${above.run.id} ${below.run.id} ${by} ${percentage} ${stage}`;
  const { data, error } = useAnswer<Divergence>(key, 0, (signal) =>
    getJson<Divergence>(
      "divergence",
      { run: above.run.id, other: below.run.id, by, percent: percentage },
      signal,
    ),
  );
  return (
    <Card
      title="Where they diverge"
      class="divergence"
      aside={
        <Chips
          label="Smallest difference that counts"
          options={PERCENTS}
          value={percentage}
          names={PERCENT_NAMES}
          onChange={(value) => go({ differ: value === "0" ? undefined : value }, { quiet: true })}
        />
      }
    >
      {data ? <Answer data={data} by={by} percentage={percentage} /> : <Pending error={error} />}
    </Card>
  );
}

/** Where two runs diverge first, and where next. */
function Answer({ data, by, percentage }: { data: Divergence; by: By; percentage: string }) {
  const word = data.by === "global" ? "recorded step" : "step";
  const first = data.points[0];
  if (!data.n_places || !data.n_names)
    return <p>They have {data.n_names ? `no ${word}` : "no tensor and no scalar"} in common.</p>;
  if (!first)
    return (
      <p>
        <b>Nowhere</b>:{" "}
        {data.n_names === 1
          ? "the only tensor or scalar is"
          : `all ${count(data.n_names)} tensors and scalars are`}{" "}
        {percentage === "0" ? "the same" : `within ${percentage} %`} at{" "}
        {counted(data.n_places, word)}.
      </p>
    );
  const names = data.points.filter((each) => each.place === first.place);
  const more = data.n_points - data.points.length;
  return (
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
        {names.length > 3 && ` and ${more ? "others" : `${count(names.length - 3)} more`}`}
        <span class="soft">
          ; {count(data.n_points)} of {count(data.n_names)} tensors and scalars{" "}
          {data.n_points === 1 ? "diverges" : "diverge"} in {counted(data.n_places, word)}.
        </span>
      </p>
      {data.points.length > names.length && (
        <p class="soft">
          Then{" "}
          {data.points.slice(names.length, names.length + 4).map((each, i) => (
            <span key={each.name}>
              {i > 0 && ", "}
              <Name {...each} by={by} /> at {count(each.place)}
            </span>
          ))}
          .
        </p>
      )}
    </>
  );
}

/** A tensor that diverges: a click shows it. */
function Name({ name, place, deviation, by }: Divergence["points"][0] & { by: By }) {
  const at = by === "time" ? undefined : String(place);
  const title =
    deviation === null ? "NaN or Inf in only one of them" : `differs by ${percent(deviation)}`;
  return (
    <button
      type="button"
      class="plain"
      title={title}
      onClick={() =>
        go(name.startsWith("scalar/") ? { curve: name, at } : { tensor: name, at }, { quiet: true })
      }
    >
      <code>{shorten(name, 48)}</code>
    </button>
  );
}
