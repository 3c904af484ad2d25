/** The phases of steps, stacked over the steps: each column is of all of its steps. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Packed } from "../api";
import { drawAxis, gutterOf, hatch, RIGHT, sharp } from "../canvas";
import { phaseColor, themed } from "../colors";
import { Crosshair, point } from "../crosshair";
import { count, counted, number, steps as stepsText } from "../format";
import { setCursor, useSize, useTheme } from "../hooks";
import { LineKeys } from "../parts";
import type { Range } from "../run_data";
import { SaveCanvas } from "../saving";

const HEIGHT = 260;
const FOOT = 26;
const TOP = 12;
/** A few steps far above the others leave the axis; a mark says so. */
const BEYOND = 3;
const LEAST_DRAG = 5;

/** What a column of the chart has. */
interface Stack {
  /** Upper end of each phase, in ms. */
  tops: Float64Array;
  n: number;
  high: number;
}

function stacksOf(packed: Packed): Stack[] {
  const { phases, steps, edges } = named(packed);
  const n = edges.length - 1;
  const high = packed.arrays.duration_high;
  return Array.from({ length: n }, (_, j) => {
    const tops = new Float64Array(packed.header.phases.length);
    let sum = 0;
    for (let i = 0; i < tops.length; i++) {
      sum += phases[i * n + j] || 0;
      tops[i] = sum;
    }
    return { tops, n: steps[j], high: high[j] };
  });
}

function named({ arrays }: Packed) {
  return { phases: arrays.phases, steps: arrays.duration_rows, edges: arrays.edges };
}

/** The end of the axis: the longest step, unless it would crush all others. */
function endOf(stacks: Stack[]): number {
  const there = stacks.filter((each) => each.n);
  const sums = there.map(({ tops }) => tops[tops.length - 1]).sort((a, b) => a - b);
  const most = sums[sums.length - 1] ?? 1;
  const usual = (sums[sums.length >> 1] ?? 1) * BEYOND;
  const longest = there.reduce((before, { high }) => Math.max(before, high), 0);
  return Math.max(Math.min(longest, usual), Math.min(most, usual), 1e-6) * 1.06;
}

export function Bands({
  packed,
  range,
  cursor,
}: {
  packed: Packed;
  range: Range;
  cursor: number | undefined;
}) {
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [hovered, setHovered] = useState(-1);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const stacks = useMemo(() => stacksOf(packed), [packed]);
  const { edges } = packed.arrays;
  const { phases, phase_names: names } = packed.header as {
    phases: number[];
    phase_names: string[];
  };
  const { from, to } = range;
  const left = gutterOf(size.width);
  const width = Math.max(1, size.width - left - RIGHT);
  const floor = HEIGHT - FOOT;
  const end = useMemo(() => endOf(stacks), [stacks]);
  const x = (step: number) => left + ((step - from) / Math.max(1, to - from)) * width;
  const y = (ms: number) => floor - (Math.min(ms, end) / end) * (floor - TOP);
  const stepAt = (px: number) => from + ((px - left) / width) * (to - from);
  const columnAt = (px: number) => {
    const step = stepAt(px);
    if (px < left || step < edges[0] || step >= edges[edges.length - 1]) return -1;
    return Math.min(stacks.length - 1, Math.floor((step - edges[0]) / (edges[1] - edges[0])));
  };

  useEffect(() => {
    const ctx = sharp(canvas.current!, size.width, HEIGHT);
    if (!size.width) return;
    canvas.current!.dataset.drawn = `${from} ${to}`;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, 0, width, floor);
    ctx.clip();
    hatch(ctx, left, TOP, width, floor - TOP);
    drawStacks(ctx);
    ctx.restore();
    drawValues(ctx);
    drawAxis(ctx, [from, to], left, width, floor, count);
    ctx.fillStyle = themed("ink");
    if (cursor !== undefined && cursor >= from && cursor < to)
      ctx.fillRect(x(cursor + 0.5) - 0.5, TOP, 1, floor - TOP);
    if (drag) {
      ctx.fillStyle = themed("accent-soft");
      const [a, b] = [x(drag.from), x(drag.to)];
      ctx.fillRect(Math.min(a, b), TOP, Math.abs(b - a), floor - TOP);
    }
  }, [packed, from, to, size.width, hovered, cursor, drag, theme]);

  function drawStacks(ctx: CanvasRenderingContext2D): void {
    const colors = phases.map(phaseColor);
    const [surface, ink] = ["surface", "ink"].map(themed);
    stacks.forEach(({ tops, n, high }, j) => {
      if (!n) return;
      // Whole pixels of the screen: what is between two would be drawn by neither.
      const at = whole(x(edges[j]));
      const wide = Math.max(1 / devicePixelRatio, whole(x(edges[j + 1])) - at);
      ctx.fillStyle = surface;
      ctx.fillRect(at, TOP, wide, floor - TOP);
      let bottom = floor;
      tops.forEach((top, i) => {
        const upper = y(top);
        ctx.fillStyle = colors[i];
        ctx.fillRect(at, upper, wide, bottom - upper);
        bottom = upper;
      });
      ctx.fillStyle = ink;
      if (n > 1) ctx.fillRect(at, y(high) - 0.75, wide, 1.5);
      if (high > end) ctx.fillRect(at + wide / 2 - 2, TOP - 9, 4, 7);
      if (j === hovered) {
        ctx.strokeStyle = ink;
        ctx.strokeRect(at, y(tops[tops.length - 1]), wide, floor - y(tops[tops.length - 1]));
      }
    });
  }

  function drawValues(ctx: CanvasRenderingContext2D): void {
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const unit = roundUp(end / 4);
    for (let value = 0; value <= end; value += unit) {
      ctx.fillStyle = themed("rule");
      ctx.globalAlpha = 0.6;
      ctx.fillRect(left, y(value), width, 1);
      ctx.globalAlpha = 1;
      ctx.fillStyle = themed("ink-soft");
      ctx.fillText(`${number(value)} ms`, left - 8, Math.min(floor - 5, y(value)));
    }
  }

  const keys = names.map((label, i) => ({ label, color: phaseColor(phases[i]) }));
  const stack = stacks[hovered];
  return (
    <div>
      <div class="chart-host" ref={host}>
        <canvas
          ref={canvas}
          class="bands"
          role="img"
          tabIndex={0}
          aria-label={sentence(packed, stacks, from, to)}
          style={{ height: `${HEIGHT}px` }}
          onPointerDown={(event) => {
            (event.target as HTMLElement).setPointerCapture(event.pointerId);
            const at = stepAt(event.offsetX);
            setDrag({ from: at, to: at });
          }}
          onPointerMove={(event) => {
            if (drag) setDrag({ ...drag, to: stepAt(event.offsetX) });
            setHovered(columnAt(event.offsetX));
            point(event.offsetX < left ? undefined : Math.floor(stepAt(event.offsetX)));
          }}
          onPointerUp={(event) => {
            if (!drag) return;
            setDrag(null);
            const [a, b] = [drag.from, drag.to].sort((p, q) => p - q);
            if (x(b) - x(a) > LEAST_DRAG)
              range.set(Math.max(from, Math.floor(a)), Math.min(to, Math.ceil(b)));
            else if (event.offsetX >= left) setCursor(Math.floor(stepAt(event.offsetX)));
          }}
          onPointerLeave={() => {
            setHovered(-1);
            point(undefined);
          }}
          onDblClick={range.reset}
          onKeyDown={(event) => {
            if (event.key === "ArrowRight") setHovered(Math.min(stacks.length - 1, hovered + 1));
            else if (event.key === "ArrowLeft") setHovered(Math.max(0, hovered - 1));
            else return;
            event.preventDefault();
            event.stopPropagation();
          }}
        />
        <Crosshair from={from} to={to} left={left} width={width} />
        <SaveCanvas
          title="phases of a step"
          canvas={canvas}
          table={() => [
            ["from", "to", ...names.map((name) => `${name} ms`), "longest ms"],
            ...stacks.map(({ tops, high }, j) => [
              edges[j],
              edges[j + 1],
              ...tops.map((top, i) => top - (i ? tops[i - 1] : 0)),
              high,
            ]),
          ]}
        />
      </div>
      <p class="reading" aria-live="polite">
        {stack?.n ? (
          <span>
            <b>{stepsText(edges[hovered], edges[hovered + 1] - 1)}</b>{" "}
            {names.map((name, i) => (
              <span key={name}>
                {name} <em>{number(stack.tops[i] - (i ? stack.tops[i - 1] : 0))}</em>
              </span>
            ))}
            ms{stack.n > 1 && `, mean of ${counted(stack.n, "step")}; longest `}
            {stack.n > 1 && <em>{number(stack.high)}</em>}
          </span>
        ) : (
          <>
            <LineKeys lines={keys} />
            <span class="soft">line: the longest step of each column</span>
          </>
        )}
      </p>
    </div>
  );
}

function whole(px: number): number {
  return Math.round(px * devicePixelRatio) / devicePixelRatio;
}

function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((k) => k * power).find((k) => k >= value)!;
}

function sentence(packed: Packed, stacks: Stack[], from: number, to: number): string {
  const there = stacks.filter((each) => each.n);
  const names = packed.header.phase_names as string[];
  const means = names.map((name, i) => {
    const sum = there.reduce((all, { tops }) => all + tops[i] - (i ? tops[i - 1] : 0), 0);
    return `${name} ${number(sum / Math.max(1, there.length))} ms`;
  });
  return `Phases of a step, ${stepsText(from, Math.max(from, to - 1))}: ${means.join(", ")}`;
}
