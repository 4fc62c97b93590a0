// Where the page's program does not answer, nothing on the page is live.
for (const event of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(event, () => {
    const line = document.getElementById("as-of");
    if (line !== null && !line.dataset.since) {
      line.dataset.since = new Date().toISOString().slice(11, 19);
      line.textContent += ` Not live: 'dynastate ui' has not answered since ${line.dataset.since} UTC. `;
      line.classList.add("problem");
    }
  });
}

// The value of a slider is beside it.
document.addEventListener("input", (event) => {
  const output = event.target.parentElement?.querySelector("output");
  if (output) {
    output.textContent = event.target.value;
  }
});
