/** Maps on a linear scale: how busy cores and GPUs were, how late ranks came. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { viridis } from "../colors";
import { count, plain, steps as stepsText } from "../format";
import type { Grid } from "../grid";
import { setCursor } from "../hooks";
import { type Cell, MapCanvas, type Plot, useFrame } from "../map_canvas";
import type { Range } from "../run_data";

const MOST_HEIGHT = 420;
const LEAST_ROW = 6;

export function LinearMap({
  grid,
  range,
  high,
  cursor,
  what,
  name,
  text,
  legend,
}: {
  grid: Grid;
  range: Range;
  /** The value of the brightest colour; 0 has the darkest. */
  high: number;
  cursor: number | undefined;
  /** What the map shows, in words. */
  what: string;
  /** Its name for tests and styles. */
  name: string;
  text: (value: number) => string;
  legend: ComponentChildren;
}) {
  const frame = useFrame(grid, range.from, range.to);
  const shown = frame.grid;
  const cells = useMemo(
    () => (plot: Plot) => {
      for (let y = 0; y < plot.visible && y + plot.offset < shown.names.length; y++)
        for (let j = 0; j < shown.columns; j++) {
          const at = (y + plot.offset) * shown.columns + j;
          if (!shown.rows[at]) continue;
          plot.ctx.fillStyle = viridis(shown.mean[at] / high);
          plot.ctx.fillRect(
            plot.x(shown.start + j * shown.width),
            y * plot.rowHeight,
            plot.columnWidth + 0.5,
            plot.rowHeight - (plot.rowHeight > 8 ? 1 : 0),
          );
        }
    },
    [shown, high],
  );
  const reading = (cell: Cell | null) => {
    if (!cell) return legend;
    const at = cell.row * shown.columns + cell.column;
    const first = shown.start + cell.column * shown.width;
    return (
      <span>
        <b>{plain(shown.names[cell.row])}</b> {stepsText(first, first + shown.width - 1)}{" "}
        {shown.rows[at] ? (
          <>
            <em>{text(shown.mean[at])}</em>
            {shown.low[at] !== shown.high[at] && (
              <span class="soft">
                from {text(shown.low[at])} to {text(shown.high[at])}
              </span>
            )}
          </>
        ) : (
          <span class="soft">not recorded</span>
        )}
      </span>
    );
  };
  return (
    <MapCanvas
      frame={frame}
      class={name}
      description={`${what}, ${count(grid.names.length)} rows`}
      rows={grid.names.length}
      mostHeight={MOST_HEIGHT}
      leastRow={LEAST_ROW}
      cursor={cursor}
      home={range.to - 1}
      cells={cells}
      name={(row) => ({ text: plain(grid.names[row]) })}
      place={count}
      onCursor={setCursor}
      onOpen={(cell) => setCursor(Math.floor(shown.start + cell.column * shown.width))}
      onRange={range.set}
      onReset={range.reset}
      reading={reading}
    />
  );
}

/** The colours of the map between what its ends are. */
export function Ramp({ low, high }: { low: string; high: string }) {
  return (
    <span class="time-ramp soft">
      {low} <i aria-hidden="true" /> {high} · hatched: not recorded
    </span>
  );
}
