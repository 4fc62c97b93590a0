"use strict";
// Draws each figure of class "chart" from the table within it, with uPlot. The head of a column says how it is drawn.

const PANEL_PX = 132;
const LANE_PX = 20;
const X_AXIS_PX = 24;
const Y_AXIS_PX = 64;
const BAR_MAX_PX = 28;
// A line ends where the next point is further away than this multiple of the usual distance.
const GAP = 2.5;
// The plots of each figure, and the part of the x axis that a reader has zoomed into, by the figure's id.
const drawn = new Map();
const zoomed = new Map();

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const colour = (name) => token({ bad: "bad", warn: "warn-mark" }[name] ?? name);
const font = () => `11px ${token("sans")}`;

const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const clock = (ms, seconds) => new Date(ms).toISOString().slice(11, seconds ? 19 : 16);
const day = (ms) => new Date(ms).toUTCString().slice(5, 11);

function valueOf(cell) {
  const time = cell.querySelector("time");
  if (time) {
    return Date.parse(time.dateTime);
  }
  const text = cell.textContent.replace(/[,$\s]/g, "");
  return text === "" || text === "–" ? null : Number(text);
}

// The table as columns, in the order of x.
function readTable(figure) {
  const table = figure.querySelector("details table");
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells]);
  rows.sort((one, other) => valueOf(one[0]) - valueOf(other[0]));
  const columns = [...table.tHead.rows[0].cells].map((head, index) => {
    const isText = head.dataset.lane || head.dataset.start || head.dataset.label;
    const values = rows.map((cells) => (isText ? cells[index].textContent.trim() : valueOf(cells[index])));
    return { ...head.dataset, name: head.textContent.trim(), values };
  });
  const links = rows.map((cells) => cells.map((cell) => cell.querySelector("a")?.href).find(Boolean));
  const [x, ...others] = columns;
  const gaps = x.values.slice(1).map((value, index) => value - x.values[index]).sort((one, other) => one - other);
  return {
    x: x.values,
    slot: gaps[gaps.length >> 1] || 1,
    label: others.find((each) => each.label),
    series: others.filter((each) => each.draw),
    lanes: others.filter((each) => each.lane),
    starts: others.find((each) => each.start),
    links,
  };
}

function xAxis(isTime, isShown) {
  const values = (plot, splits, _axis, _space, step) =>
    splits.map((each) => {
      if (!isTime) {
        return Number.isInteger(each) ? number(each) : "";
      }
      const isDay = step >= 864e5 || (clock(each) === "00:00" && plot.scales.x.max - plot.scales.x.min > 864e5);
      return isDay ? day(each) : clock(each, step < 6e4);
    });
  return {
    show: isShown,
    size: X_AXIS_PX,
    gap: 4,
    space: 70,
    font: font(),
    stroke: () => token("faint"),
    grid: { show: false },
    ticks: { show: false },
    values,
  };
}

const yAxis = (digits, prefix) => ({
  size: Y_AXIS_PX,
  gap: 6,
  space: 30,
  font: font(),
  stroke: () => token("faint"),
  grid: { stroke: () => token("line"), width: 1 },
  ticks: { show: false },
  values: (_plot, splits, _axis, _space, step) => {
    const needed = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
    return splits.map((each) => prefix + number(each, step >= 1 ? 0 : Math.max(needed, Math.min(digits, 2))));
  },
});

// A line where a run began, from top to bottom of a panel.
function drawStarts(plot, data, isFirst) {
  const { ctx, bbox } = plot;
  data.starts?.values.forEach((run, index) => {
    const x = Math.round(plot.valToPos(data.x[index] - data.slot / 2, "x", true)) + 0.5;
    if (run && x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.save();
      ctx.strokeStyle = token("soft");
      ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (isFirst) {
        ctx.fillStyle = token("soft");
        ctx.font = `${11 * devicePixelRatio}px ${token("sans")}`;
        ctx.textAlign = "left";
        ctx.fillText(`${run} began`, x + 5 * devicePixelRatio, bbox.top + 9 * devicePixelRatio);
      }
      ctx.restore();
    }
  });
}

const forms = {
  diamond: (ctx, x, y, r) => ctx.fill(new Path2D(`M${x} ${y - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}z`)),
  triangle: (ctx, x, y, r) => ctx.fill(new Path2D(`M${x} ${y - r}l${r} ${1.8 * r}h${-2 * r}z`)),
  cross: (ctx, x, y, r) => {
    ctx.lineWidth = r / 2.5;
    ctx.stroke(new Path2D(`M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`));
  },
};

function drawLanes(plot, data) {
  const { ctx, bbox } = plot;
  data.lanes.forEach((lane, index) => {
    const y = plot.valToPos(data.lanes.length - index - 0.5, "y", true);
    lane.values.forEach((event, point) => {
      const x = plot.valToPos(data.x[point], "x", true);
      if (event && x >= bbox.left && x <= bbox.left + bbox.width) {
        ctx.save();
        ctx.fillStyle = ctx.strokeStyle = colour(lane.colour);
        forms[lane.lane](ctx, x, y, 4.5 * devicePixelRatio);
        ctx.restore();
      }
    });
  });
}

function seriesOf(column, data, hot) {
  const stroke = () => colour(column.colour);
  const isHot = data.x.map((_, index) => index === hot);
  if (column.draw === "bars" || column.draw === "stack") {
    const fills = { unit: 3, values: () => isHot.map((each) => colour(each ? "warn" : column.colour)) };
    const disp = hot === null ? undefined : { fill: fills, stroke: fills };
    return { stroke, fill: stroke, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.72, BAR_MAX_PX, 1], disp }) };
  }
  const gaps = (plot, _series, first, last, nulls) => {
    const found = [...nulls];
    for (let index = first + 1; index <= last; index++) {
      if (data.isTime && column.draw === "line" && data.x[index] - data.x[index - 1] > GAP * data.slot) {
        found.push([plot.valToPos(data.x[index - 1], "x", true), plot.valToPos(data.x[index], "x", true)]);
      }
    }
    return found.sort((one, other) => one[0] - other[0]);
  };
  const paths = column.draw === "step" ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear();
  const dash = column.dashed ? [4, 3] : undefined;
  return { stroke, width: 1.5, dash, paths, gaps, points: { show: column.draw === "step" && data.x.length < 60, size: 6, fill: stroke } };
}

// Stacked columns, each with those below it added; the highest is drawn first.
function stacked(columns) {
  let below = null;
  const sums = columns.map((column) => {
    below = column.values.map((value, index) => (value ?? 0) + (below ? below[index] : 0));
    return below;
  });
  return sums.reverse();
}

function draw(figure) {
  const isTime = figure.dataset.time === "1";
  const data = { ...readTable(figure), isTime };
  if (data.x.length === 0) {
    return;
  }
  const place = figure.querySelector(".plot");
  const at = figure.querySelector(".at");
  const keys = [...figure.querySelectorAll("figcaption .key b")];
  const hot = figure.dataset.hot === undefined ? null : Number(figure.dataset.hot);
  const pad = data.series.some((each) => each.draw === "bars" || each.draw === "stack") ? data.slot / 2 : data.x.length > 1 ? 0 : data.slot;
  const whole = [data.x[0] - pad, data.x[data.x.length - 1] + pad];
  const panels = grouped(data.series);
  place.replaceChildren();
  const plots = [];

  function show(index) {
    const point = index ?? (hot ?? data.x.length - 1);
    const when = isTime ? `${whole[1] - whole[0] > 864e5 ? `${day(data.x[point])}, ` : ""}${clock(data.x[point], true)}` : `${figure.dataset.noun} ${data.x[point]}`;
    at.textContent = data.label ? `${data.label.label} ${data.label.values[point]}, ${when}` : when;
    data.series.forEach((column, column_index) => {
      const value = column.values[point];
      keys[column_index].textContent = (value === null ? "" : column.prefix) + number(value, Number(column.digits)) + (value !== null && column.unit ? ` ${column.unit}` : "");
    });
  }

  const options = (height, isLast, more, isFirst = false) => ({
    width: place.clientWidth,
    height: height + (isLast ? X_AXIS_PX : 0),
    ms: 1,
    tzDate: (ms) => uPlot.tzDate(new Date(ms), "Etc/UTC"),
    legend: { show: false },
    padding: [8, 8, isLast ? 0 : 4, 0],
    cursor: {
      sync: { key: figure.dataset.sync, scales: ["x", null] },
      y: false,
      drag: { x: true, y: false },
      points: { size: 7 },
      bind: { dblclick: (plot, _target, handler) => (event) => { zoomed.delete(figure.id); return handler(event); } },
    },
    hooks: {
      setCursor: [(plot) => show(plot.cursor.idx)],
      setScale: [
        (plot, key) => {
          const { min, max } = plot.scales.x;
          if (key === "x" && min !== null) {
            const isWhole = Math.abs(min - whole[0]) < 1e-6 && Math.abs(max - whole[1]) < 1e-6;
            isWhole ? zoomed.delete(figure.id) : zoomed.set(figure.id, [min, max]);
          }
        },
      ],
      draw: [(plot) => drawStarts(plot, data, isFirst), ...(more.draw ?? [])],
    },
    scales: { x: { time: isTime, range: (_plot, min, max) => (min === data.x[0] && max === data.x[data.x.length - 1] ? whole : [min, max]) }, y: more.y },
    axes: [xAxis(isTime, isLast), more.axis],
    series: [{}, ...more.series],
  });

  const entries = [...panels.entries()];
  entries.forEach(([axis, columns], index) => {
    const name = document.createElement("p");
    name.className = "axis";
    name.textContent = axis;
    place.append(name);
    const isFromZero = columns.some((each) => each.draw !== "step");
    const isStack = columns.some((each) => each.draw === "stack");
    const stacks = columns.filter((each) => each.draw === "stack");
    const others = columns.filter((each) => each.draw !== "stack");
    const order = [...[...stacks].reverse(), ...others];
    const values = [...(isStack ? stacked(stacks) : []), ...others.map((each) => each.values)];
    const y = { range: (_plot, min, max) => (isFromZero ? uPlot.rangeNum(0, max > 0 ? max : 1, 0.05, true) : uPlot.rangeNum(min ?? 0, max ?? 1, 0.1, true)).map((each, end) => (isFromZero && end === 0 ? 0 : each)) };
    const setup = options(entries.length > 1 && index > 0 ? PANEL_PX * 0.65 : PANEL_PX, index === entries.length - 1 && data.lanes.length === 0, {
      y,
      axis: yAxis(Number(columns[0].digits), columns[0].prefix),
      series: order.map((each) => seriesOf(each, data, hot)),
    }, index === 0);
    plots.push(new uPlot(setup, [data.x, ...values], place));
  });
  if (data.lanes.length > 0) {
    const count = data.lanes.length;
    const setup = options(count * LANE_PX + 8, true, {
      y: { range: () => [0, count] },
      axis: {
        ...yAxis(0, ""),
        splits: () => data.lanes.map((_, index) => count - index - 0.5),
        values: () => data.lanes.map((each) => each.name),
        filter: (_plot, splits) => splits,
      },
      series: [{ show: true, paths: () => null, points: { show: false } }],
      draw: [(plot) => drawLanes(plot, data)],
    });
    plots.push(new uPlot(setup, [data.x, data.x.map(() => 0)], place));
  }
  const kept = zoomed.get(figure.id);
  if (kept) {
    for (const plot of plots) {
      plot.setScale("x", { min: kept[0], max: kept[1] });
    }
  }
  show(null);
  place.onclick = () => {
    const index = plots[0].cursor.idx;
    if (!isTime && data.links[index] && plots.every((plot) => plot.select.width === 0)) {
      location.href = data.links[index];
    }
  };
  const sizes = new ResizeObserver(() => {
    for (const plot of plots) {
      if (place.clientWidth > 0 && plot.width !== place.clientWidth) {
        plot.setSize({ width: place.clientWidth, height: plot.height });
      }
    }
  });
  sizes.observe(place);
  figure.dataset.drawn = plots.length;
  drawn.set(figure, { plots, sizes });
}

function grouped(columns) {
  const groups = new Map();
  for (const each of columns) {
    groups.set(each.axis, [...(groups.get(each.axis) ?? []), each]);
  }
  return groups;
}

function drawAll() {
  for (const [figure, { plots, sizes }] of drawn) {
    if (!figure.isConnected) {
      sizes.disconnect();
      plots.forEach((plot) => plot.destroy());
      drawn.delete(figure);
    }
  }
  for (const figure of document.querySelectorAll("figure.chart:not([data-drawn])")) {
    draw(figure);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { plots } of drawn.values()) {
    plots.forEach((plot) => plot.redraw(false, true));
  }
});
document.addEventListener("htmx:afterSwap", drawAll);
drawAll();
