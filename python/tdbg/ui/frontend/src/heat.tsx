/** The distribution of a tensor over steps: how many elements have which value, and quantiles. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Packed } from "./api";
import { drawAxis, hatch, RIGHT, sharp, ticks } from "./canvas";
import { BAD, themed, viridis } from "./colors";
import { Crosshair, point } from "./crosshair";
import { count, number } from "./format";
import { useSize, useTheme } from "./hooks";
import { type Cell, SaveCanvas } from "./saving";

const FOOT = 26;
const TOP = 10;
/** Which of the server's quantiles are drawn as lines: 10 %, median, 90 %. */
const LINES = [1, 3, 5];

export function Heat({
  packed,
  from,
  to,
  height,
  left: LEFT,
}: {
  packed: Packed;
  from: number;
  to: number;
  height: number;
  /** Room for the values. */
  left: number;
}) {
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [hovered, setHovered] = useState(-1);
  const { steps, counts, edges, bad, quantile_values: quantiles } = packed.arrays;
  const n = steps.length;
  const bins = edges.length - 1;
  const nQuantiles = packed.shapes.quantile_values[1];
  const low = edges[0];
  const high = edges[bins];
  const width = Math.max(1, size.width - LEFT - RIGHT);
  const floor = height - FOOT;
  const x = (step: number) => LEFT + ((step - from) / Math.max(1, to - from)) * width;
  const y = (value: number) => floor - ((value - low) / (high - low || 1)) * (floor - TOP);
  const ends = Array.from(steps, (_, j) =>
    j + 1 < n ? steps[j + 1] : Math.min(to, steps[j] + (j ? steps[j] - steps[j - 1] : to - from)),
  );

  useEffect(() => {
    const ctx = sharp(canvas.current!, size.width, height);
    ctx.fillStyle = themed("sunken");
    ctx.fillRect(LEFT, TOP, width, floor - TOP);
    hatch(ctx, LEFT, TOP, width, floor - TOP);
    ctx.save();
    ctx.beginPath();
    ctx.rect(LEFT, 0, width, floor);
    ctx.clip();
    for (let j = 0; j < n; j++) {
      const column = counts.subarray(j * bins, (j + 1) * bins) as Float32Array;
      const most = column.reduce((a, b) => Math.max(a, b), 0) || 1;
      const left = x(steps[j]);
      const wide = Math.max(1, x(ends[j]) - left + 0.5);
      ctx.fillStyle = themed("sunken");
      ctx.fillRect(left, TOP, wide, floor - TOP);
      column.forEach((found, k) => {
        if (!found) return;
        // Small counts stay visible beside the peak: by the logarithm.
        ctx.fillStyle = viridis(0.15 + (0.85 * Math.log1p(found)) / Math.log1p(most));
        ctx.fillRect(left, y(edges[k + 1]), wide, y(edges[k]) - y(edges[k + 1]) + 0.5);
      });
      if (bad[j]) {
        ctx.fillStyle = BAD;
        ctx.fillRect(left, 0, Math.max(3, wide), TOP - 3);
      }
    }
    ctx.lineWidth = 1.5;
    for (const q of LINES) {
      ctx.strokeStyle = q === 3 ? "#ffffff" : "rgba(255,255,255,.65)";
      ctx.setLineDash(q === 3 ? [] : [4, 3]);
      ctx.beginPath();
      // The first of them begins the line.
      for (let j = 0; j < n; j++)
        ctx.lineTo((x(steps[j]) + x(ends[j])) / 2, y(quantiles[j * nQuantiles + q]));
      ctx.stroke();
    }
    ctx.setLineDash([]);
    if (hovered >= 0 && hovered < n) {
      ctx.strokeStyle = themed("ink");
      ctx.strokeRect(x(steps[hovered]), TOP, x(ends[hovered]) - x(steps[hovered]), floor - TOP);
    }
    ctx.restore();
    ctx.fillStyle = themed("ink-soft");
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (const value of ticks(low, high, floor * 2.5, 0))
      ctx.fillText(number(value), LEFT - 8, Math.max(TOP + 4, Math.min(floor - 4, y(value))));
    drawAxis(ctx, [from, to], LEFT, width, floor, count);
  }, [packed, from, to, size.width, height, hovered, theme]);

  const q = (j: number, k: number) => number(quantiles[j * nQuantiles + k]);
  const table = (): Cell[][] => [
    ["from_step", "not_finite", ...Array.from(edges.subarray(0, bins), (low) => `from ${low}`)],
    ...Array.from(steps, (step, j): Cell[] => [
      step,
      bad[j],
      ...Array.from(counts.subarray(j * bins, (j + 1) * bins)),
    ]),
  ];
  return (
    <div>
      <div class="chart-host" ref={host}>
        <canvas
          ref={canvas}
          class="heat"
          role="img"
          tabIndex={0}
          aria-label={
            n
              ? `Histograms at ${n} columns of steps, values from ${number(low)} to ${number(high)}; newest median ${q(n - 1, 3)}`
              : "No histograms"
          }
          style={{ height: `${height}px` }}
          onPointerMove={(event) => {
            const step = from + ((event.offsetX - LEFT) / width) * (to - from);
            let j = -1;
            while (j + 1 < n && steps[j + 1] <= step) j++;
            setHovered(j >= 0 && step < ends[j] ? j : -1);
            point(event.offsetX < LEFT ? undefined : Math.floor(step));
          }}
          onPointerLeave={() => {
            setHovered(-1);
            point(undefined);
          }}
          onKeyDown={(event) => {
            if (event.key === "ArrowRight") setHovered(Math.min(n - 1, hovered + 1));
            else if (event.key === "ArrowLeft") setHovered(Math.max(0, hovered - 1));
            else return;
            event.preventDefault();
            event.stopPropagation();
          }}
        />
        <Crosshair from={from} to={to} left={LEFT} width={width} />
        <SaveCanvas title="histograms" canvas={canvas} table={table} />
      </div>
      <p class="reading" aria-live="polite">
        {hovered >= 0 && hovered < n ? (
          <span>
            <b>from step {count(steps[hovered])}</b> 1 % <em>{q(hovered, 0)}</em> 10 %{" "}
            <em>{q(hovered, 1)}</em> median <em>{q(hovered, 3)}</em> 90 % <em>{q(hovered, 5)}</em>{" "}
            99 % <em>{q(hovered, 6)}</em>
            {bad[hovered] > 0 && <strong class="bad"> {count(bad[hovered])} not finite</strong>}
          </span>
        ) : (
          <span class="soft">bright: many elements · line: median · dashed: 10 % and 90 %</span>
        )}
      </p>
    </div>
  );
}
