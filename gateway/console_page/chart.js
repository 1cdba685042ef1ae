// Draws the values of the last minutes as a line.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 160;
const HEIGHT = 32;

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Return a line through values, the newest at the right, scaled from 0 to the highest. */
export function line(values, label) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const highest = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((value, place) => `${place * step},${HEIGHT - 1 - (value / highest) * (HEIGHT - 2)}`);
  svg.append(drawn("polyline", { points: points.join(" ") }));
  return svg;
}
