/** The elements of a tensor at a step, where its values were saved: blue below zero, orange above. */
import { useEffect, useRef, useState } from "preact/hooks";
import { getArrays, type Packed } from "./api";
import { BAD, themed } from "./colors";
import { epochOf } from "./doorbell";
import { count, counted, number, shape } from "./format";
import { useAnswer, useSize, useTheme } from "./hooks";
import { Card } from "./parts";
import { type Cell, SaveCanvas } from "./saving";
import type { Run } from "./types";

const MOST_HEIGHT = 260;
const BELOW = [0, 114, 178];
const ABOVE = [230, 120, 0];

export function Elements({
  run,
  name,
  worker,
  at,
  version,
}: {
  run: Run;
  name: string;
  worker: string | undefined;
  at: number;
  version: number;
}) {
  const { data } = useAnswer<Packed>(
    `values ${run.id} ${epochOf(run.id)} ${name} ${worker} ${at}`,
    version,
    (signal) => getArrays("values", { run: run.id, name, worker, at }, signal),
  );
  // A single number is in the chart and in the rows.
  if (!data?.header.n_steps || data.arrays.extreme.length < 2) return null;
  return (
    <Card
      title={`Values at step ${count(data.header.step)}`}
      aside={
        <span class="soft">
          {shape(data.header.shape)}, saved at {counted(data.header.n_steps, "step")}
        </span>
      }
    >
      <Picture packed={data} title={`${name} at step ${data.header.step}`} />
    </Card>
  );
}

function Picture({ packed, title }: { packed: Packed; title: string }) {
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [cell, setCell] = useState<[number, number] | null>(null);
  const { extreme, bad } = packed.arrays;
  const [rows, columns] = packed.shapes.extreme;
  const [tall, wide] = packed.header.block as [number, number];
  let most = 0;
  for (const value of extreme) most = Math.max(most, Math.abs(value));
  // The longer side goes to the right, where there is room.
  const isTurned = rows > columns;
  const [down, right] = isTurned ? [columns, rows] : [rows, columns];
  const place = (y: number, x: number) => (isTurned ? x * columns + y : y * columns + x);
  const side = Math.max(
    1,
    Math.min(24, Math.floor(size.width / right), Math.floor(MOST_HEIGHT / down)),
  );
  // Pictures of more cells than pixels are scaled down as a whole.
  const width = Math.min(size.width, side * right);
  const height = Math.max(18, side * down);

  useEffect(() => {
    const element = canvas.current!;
    element.width = right;
    element.height = down;
    const image = new ImageData(right, down);
    const ground = rgb(themed("surface"));
    for (let k = 0; k < rows * columns; k++) {
      const i = place(Math.floor(k / right), k % right);
      const share = Math.sqrt(Math.abs(extreme[i]) / (most || 1));
      const color = bad[i]
        ? rgb(BAD)
        : ground.map((g, k) => g + ((extreme[i] < 0 ? BELOW : ABOVE)[k] - g) * share);
      image.data.set([...color, 255], 4 * k);
    }
    element.getContext("2d")!.putImageData(image, 0, 0);
  }, [packed, theme]);

  const at = cell ? place(...cell) : -1;
  const span = (i: number, n: number, what: string) =>
    n === 1 ? `${what} ${count(i)}` : `${what}s ${count(i * n)}–${count(i * n + n - 1)}`;
  const n = bad.filter(Boolean).length;
  const table = (): Cell[][] => [
    ["row", "column", "rows", "columns", "furthest_from_zero", "not_finite"],
    ...Array.from(extreme, (value, i): Cell[] => {
      const [row, column] = [Math.floor(i / columns) * tall, (i % columns) * wide];
      return [row, column, tall, wide, value, bad[i]];
    }),
  ];
  return (
    <div class="picture-host" ref={host}>
      <canvas
        ref={canvas}
        class="elements"
        role="img"
        tabIndex={0}
        aria-label={`${count(rows)} by ${count(columns)} cells, furthest from zero ${number(most)}; ${count(n)} cells not finite. Arrow keys read them.`}
        style={{ width: `${width}px`, height: `${height}px` }}
        onPointerMove={(event) =>
          setCell([
            clamp(Math.floor((event.offsetY / height) * down), down),
            clamp(Math.floor((event.offsetX / width) * right), right),
          ])
        }
        onPointerLeave={() => setCell(null)}
        onKeyDown={(event) => {
          const by = {
            ArrowUp: [-1, 0],
            ArrowDown: [1, 0],
            ArrowLeft: [0, -1],
            ArrowRight: [0, 1],
          }[event.key];
          if (!by) return;
          event.preventDefault();
          event.stopPropagation();
          const [y, x] = cell ?? [0, -1];
          setCell([clamp(y + by[0], down), clamp(x + by[1], right)]);
        }}
      />
      <SaveCanvas title={title} canvas={canvas} table={table} />
      <p class="reading" aria-live="polite">
        {cell ? (
          <span>
            <b>
              {span(Math.floor(at / columns), tall, "row")}, {span(at % columns, wide, "column")}
            </b>
            {tall * wide > 1 && <span class="soft"> furthest from zero:</span>}{" "}
            <em>{String(extreme[at])}</em>
            {bad[at] > 0 && <strong class="bad"> NaN or Inf</strong>}
          </span>
        ) : (
          <span class="soft">
            {isTurned && rows > 1 ? "rows go to the right · " : ""}blue: below zero · orange: above
            {most > 0 && ` · full colour: ${number(most)}`}
            {n > 0 && " · magenta: not finite"}
            {tall * wide > 1 &&
              ` · a cell is ${count(tall)} × ${count(wide)} elements, and shows the one furthest from zero`}
          </span>
        )}
      </p>
    </div>
  );
}

function clamp(i: number, n: number): number {
  return Math.max(0, Math.min(n - 1, i));
}

function rgb(color: string): number[] {
  const text = color.length === 4 ? color.replace(/[^#]/g, "$&$&") : color;
  const n = parseInt(text.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}
