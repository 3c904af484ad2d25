/** A run that is watched in a cell of a notebook: what python/tdbg/notebook sends is drawn. */
import { render as draw } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type Packed, unpack } from "./api";
import { series, themed, themedBy } from "./colors";
import { count, plain, shorten, steps } from "./format";
import { axisOf, type Grid } from "./grid";
import { LayerMap } from "./layer_map";
import { AxisNote, LineChart } from "./line_chart";
import { groups, LineKeys, Mark, State, tensorsText } from "./parts";
import type { Field, Finding, Verdict } from "./types";

declare const STYLE: string;
declare const LIGHT: string;
declare const DARK: string;

/** What anywidget gives: a model with traits, and an element to draw in. */
interface Model {
  get(name: "picture"): DataView;
  on(name: string, callback: () => void): void;
  off(name: string, callback: () => void): void;
  send(content: object): void;
}

interface Header {
  name: string;
  state: string;
  stopped: string | null;
  verdict: Verdict;
  steps: number;
  findings: Finding[];
  n_findings: number;
  curves: string[];
  layers: string[];
  field: Field;
  of: string;
  start: number;
  width: number;
  columns: number;
  /** First recorded step, and the one after the last. */
  from: number;
  to: number;
}

const MOST_GROUPS = 6;

function grid(packed: Packed, which: "curve" | "layer", names: string[]): Grid {
  const { start, width, columns, to } = packed.header as Header;
  const part = (field: string) => packed.arrays[`${which}_${field}`];
  return {
    names,
    start,
    width,
    columns,
    end: to,
    sure: to,
    low: part("low") as Float32Array,
    high: part("high") as Float32Array,
    mean: part("mean") as Float32Array,
    rows: part("rows") as Uint32Array,
    bad: part("bad") as Uint32Array,
  };
}

/** One row of a grid as a grid of its own. */
function rowOf(all: Grid, i: number): Grid {
  const cut = <T extends Float32Array | Uint32Array>(values: T) =>
    values.subarray(i * all.columns, (i + 1) * all.columns) as T;
  return {
    ...all,
    names: [all.names[i]],
    low: cut(all.low),
    high: cut(all.high),
    mean: cut(all.mean),
    rows: cut(all.rows),
    bad: cut(all.bad),
  };
}

function Live({ packed }: { packed: Packed }) {
  const header = packed.header as Header;
  const [range, setRange] = useState<[number, number] | null>(null);
  const [cursor, setCursor] = useState<number>();
  const [fold, setFold] = useState<string | undefined>(undefined);
  const [from, to] = range ?? [header.from, Math.max(header.from + 1, header.to)];
  const lines = useMemo(() => {
    const all = grid(packed, "curve", header.curves);
    return header.curves.map((label, i) => ({
      label: shorten(label),
      color: series(i),
      grid: rowOf(all, i),
    }));
  }, [packed]);
  const layers = useMemo(() => grid(packed, "layer", header.layers), [packed]);
  const axis = axisOf(
    lines.map((line) => line.grid),
    undefined,
  );
  const flags = header.findings
    .filter((each) => header.curves.some((label) => label.startsWith(each.tensor)))
    .map((each) => ({
      from: each.first_step,
      to: each.last_step + 1,
      color: themed(each.severity),
    }));
  const follow = {
    onRange: (a: number, b: number) => setRange([a, b]),
    onReset: () => setRange(null),
    cursor,
  };
  const map = {
    grid: layers,
    field: header.field,
    scale: "all" as const,
    order: header.layers,
    each: true,
    worst: false,
    fold,
    onFold: setFold,
    label: (name: string) => name.replace(/^(gradient|update)\//, ""),
    findings: header.findings,
    end: header.to,
    sure: header.to,
    onCursor: (step: number) => setCursor(step),
    onOpen: (_: string, step: number) => setCursor(step),
  };
  return (
    <div class="live" data-steps={header.steps} data-status={header.state}>
      <header>
        <Mark tone={header.verdict.tone} size={18} />
        <p>{plain(header.verdict.sentence)}</p>
        <State status={header.state} stopped={header.stopped} />
        <span class="soft">
          {shorten(header.name, 40)} · {count(header.steps)} steps
        </span>
      </header>
      {lines.length > 0 && (
        <section>
          <h3>Losses</h3>
          <LineChart
            lines={lines}
            title="Losses"
            from={from}
            to={to}
            log={axis.isLog}
            height={190}
            flags={flags}
            {...follow}
          />
          <p class="reading">
            <LineKeys lines={lines} />
            <AxisNote axis={axis} lines={lines} />
          </p>
        </section>
      )}
      {header.layers.length > 0 && (
        <section>
          <h3>
            {header.field} of {header.of}, all layers
          </h3>
          <LayerMap from={from} to={to} {...map} {...follow} />
        </section>
      )}
      <Findings header={header} />
    </div>
  );
}

function Findings({ header }: { header: Header }) {
  const found = groups(header.findings);
  if (!found.length) return null;
  return (
    <section>
      <h3>{header.n_findings === 1 ? "1 finding" : `${count(header.n_findings)} findings`}</h3>
      <ul>
        {found.slice(0, MOST_GROUPS).map((group) => {
          const { tensor, message, advice } = group.findings[0];
          return (
            <li class="problem" key={`${group.rule} ${group.severity} ${group.over}`}>
              <Mark tone={group.over ? "ok" : group.severity} /> <b>{plain(group.rule)}</b>{" "}
              <span class="soft">
                {group.findings.length > 1 ? tensorsText(group) : shorten(tensor)} ·{" "}
                {steps(group.first, group.last)}
                {group.over && " · gone"}
              </span>
              <p>{plain(message)}</p>
              {advice && <p class="soft">What to do: {plain(advice)}</p>}
            </li>
          );
        })}
      </ul>
      {found.length > MOST_GROUPS && (
        <p class="soft">and {found.length - MOST_GROUPS} more rules</p>
      )}
    </section>
  );
}

/** Dark where the text around is light: hosts of notebooks have themes of their own. */
function themeOf(element: HTMLElement): "dark" | "light" {
  const [r, g, b] = (getComputedStyle(element).color.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(
    Number,
  );
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 127 ? "dark" : "light";
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const host = document.createElement("div");
  host.className = "tdbg-live-host";
  el.append(host);
  const root = host.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  const content = document.createElement("div");
  root.append(style, content);
  const release = themedBy(host);
  let frame = 0;
  const show = () => {
    frame = 0;
    const { buffer, byteOffset, byteLength } = model.get("picture");
    // A copy: the arrays of a picture begin at multiples of eight of their own buffer.
    const packed = unpack((buffer as ArrayBuffer).slice(byteOffset, byteOffset + byteLength));
    draw(<Live key={host.dataset.theme} packed={packed} />, content);
  };
  // Of several pictures that come within a frame the newest is drawn.
  const changed = () => {
    frame ||= requestAnimationFrame(show);
  };
  const dress = () => {
    const theme = themeOf(el);
    if (theme === host.dataset.theme) return;
    host.dataset.theme = theme;
    style.textContent = STYLE + (theme === "dark" ? DARK : LIGHT);
    changed();
  };
  const observer = new MutationObserver(dress);
  observer.observe(document.body, { attributes: true });
  model.on("change:picture", changed);
  model.send({ viewers: 1 });
  dress();
  return () => {
    cancelAnimationFrame(frame);
    observer.disconnect();
    model.off("change:picture", changed);
    model.send({ viewers: -1 });
    draw(null, content);
    release();
  };
}

export default { render };
