/** Whether gradients reach every layer: one bar a layer, first to last, at one step. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { sharp } from "./canvas";
import { BAD, themed, viridis } from "./colors";
import { count, number, plain } from "./format";
import { columnOf, type Grid, lastWithRows, placesOf } from "./grid";
import { useSize, useTheme } from "./hooks";
import { SaveCanvas } from "./saving";

interface Props {
  grid: Grid;
  order: string[];
  step: number;
  height: number;
  onOpen: (tensor: string, step: number) => void;
}

interface Bar {
  name: string;
  value: number;
  low: number;
  high: number;
  step: number;
  bad: boolean;
}

const LEFT = 56;
const FOOT = 26;

function bars({ grid, order, step }: Props): Bar[] {
  const column = columnOf(grid, step);
  const found: Bar[] = [];
  for (const i of placesOf(grid, order)) {
    const j = lastWithRows(grid, i, column);
    if (j < 0) continue;
    const at = i * grid.columns + j;
    let low = Infinity;
    let high = -Infinity;
    for (let k = i * grid.columns; k < (i + 1) * grid.columns; k++) {
      if (!grid.rows[k] || Number.isNaN(grid.low[k])) continue;
      low = Math.min(low, grid.low[k]);
      high = Math.max(high, grid.high[k]);
    }
    found.push({
      name: grid.names[i],
      value: grid.mean[at],
      low,
      high,
      step: grid.start + j * grid.width,
      bad: grid.bad[at] > 0,
    });
  }
  return found;
}

export function Flow(props: Props) {
  const { height } = props;
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [hovered, setHovered] = useState(-1);
  const found = useMemo(() => bars(props), [props.grid, props.order, props.step]);
  const positive = found
    .flatMap((each) => [each.value, each.low, each.high])
    .filter((v) => v > 0 && Number.isFinite(v));
  const bottom = positive.length ? Math.floor(Math.log10(Math.min(...positive)) - 0.05) : -1;
  const top = positive.length
    ? Math.max(bottom + 1, Math.ceil(Math.log10(Math.max(...positive)) + 0.05))
    : 0;
  const width = Math.max(1, size.width - LEFT - 8);
  const each = width / Math.max(1, found.length);

  useEffect(() => {
    const ctx = sharp(canvas.current!, size.width, height);
    const floor = height - FOOT;
    const y = (value: number) =>
      floor - ((Math.log10(value) - bottom) / (top - bottom)) * (floor - 10);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const stride = Math.max(1, Math.ceil((top - bottom) / 6));
    for (let power = bottom; power <= top; power += stride) {
      ctx.fillStyle = themed("rule");
      ctx.fillRect(LEFT, y(10 ** power), width, 1);
      ctx.fillStyle = themed("ink-soft");
      ctx.fillText(number(10 ** power), LEFT - 8, y(10 ** power));
    }
    // To ask for a colour costs as much as to draw a bar.
    const [range, ink, error] = ["range", "ink", "error"].map(themed);
    const gap = each > 6 ? 3 : 1;
    const thick = Math.max(1, each > 3 ? each - gap : each);
    found.forEach((bar, i) => {
      const left = LEFT + i * each;
      const bottomOf = (value: number) => (value > 0 ? y(value) : floor);
      const fill = (color: string, top: number, end: number, inset = 0) => {
        ctx.fillStyle = color;
        ctx.fillRect(left + inset, top, thick - 2 * inset, end - top);
      };
      if (bar.bad) fill(BAD, 0, 8);
      if (bar.low > 0 || bar.high > 0)
        fill(range, y(bar.high), Math.max(y(bar.high) + 1, bottomOf(bar.low)));
      if (bar.value > 0) {
        const top = y(bar.value);
        fill(viridis((floor - top) / (floor - 10)), top, floor, thick > 8 ? thick * 0.2 : 0);
        fill(ink, top - 1, top + 1);
      } else if (!bar.bad) fill(error, floor - 3, floor);
      if (i !== hovered) return;
      ctx.strokeStyle = ink;
      ctx.strokeRect(left - 1, 4, thick + 2, floor - 4);
    });
    ctx.fillStyle = themed("ink-soft");
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.fillText("first layer", LEFT, floor + 8);
    ctx.textAlign = "right";
    ctx.fillText("last layer", LEFT + width, floor + 8);
  }, [props.grid, props.order, props.step, size.width, height, hovered, theme]);

  const at = (px: number) => {
    const i = Math.floor((px - LEFT) / each);
    return i >= 0 && i < found.length ? i : -1;
  };
  const bar = found[hovered];
  const least = [...found].sort((a, b) => a.value - b.value)[0];
  const label = least
    ? `Gradient flow of ${found.length} tensors at step ${count(props.step)}; least: ${plain(least.name)}, ${number(least.value)}`
    : "Gradient flow: no gradients were recorded";
  return (
    <div class="flow">
      <div class="chart-host" ref={host}>
        <canvas
          ref={canvas}
          role="img"
          tabIndex={0}
          aria-label={label}
          style={{ height: `${height}px` }}
          onPointerMove={(event) => setHovered(at(event.offsetX))}
          onPointerLeave={() => setHovered(-1)}
          onClick={() => bar && props.onOpen(bar.name, bar.step)}
          onKeyDown={(event) => {
            if (event.key === "ArrowRight") setHovered(Math.min(found.length - 1, hovered + 1));
            else if (event.key === "ArrowLeft") setHovered(Math.max(0, hovered - 1));
            else if (event.key === "Enter" && bar) props.onOpen(bar.name, bar.step);
            else return;
            event.preventDefault();
            event.stopPropagation();
          }}
        />
        <SaveCanvas
          title="gradient flow"
          canvas={canvas}
          table={() => [
            ["name", "step", "value", "low", "high"],
            ...found.map((each) => [each.name, each.step, each.value, each.low, each.high]),
          ]}
        />
      </div>
      <p class="reading" aria-live="polite">
        {bar ? (
          <span>
            <b>{plain(bar.name)}</b> step {count(bar.step)} <em>{number(bar.value)}</em>
            <span class="soft">
              {" "}
              · over the range {number(bar.low)} to {number(bar.high)}
            </span>
          </span>
        ) : (
          <span class="soft">bar: now · pale: minimum to maximum of the range</span>
        )}
      </p>
    </div>
  );
}
