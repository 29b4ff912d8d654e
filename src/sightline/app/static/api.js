// The server's JSON API.

export async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Error(body.error || `the server answered ${answer.status}`);
  }
  return answer.status === 204 ? null : answer.json();
}

export const startJob = (question) =>
  ask("/api/jobs", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) });

export const cancelJob = (job) => ask(`/api/jobs/${job}`, { method: "DELETE" }).catch(() => null);

export const upload = (file) =>
  ask(`/api/pictures?name=${encodeURIComponent(file.name || "pasted.png")}`, { method: "POST", body: file });

// Follow a job: `heard` gets the kind and the data of each event; the promise ends with the job.
export function follow(job, heard) {
  return new Promise((resolve) => {
    const source = new EventSource(`/api/jobs/${job}/events`);
    for (const kind of ["state", "image", "map", "progress", "failure", "verdict", "end"]) {
      source.addEventListener(kind, (event) => {
        const data = JSON.parse(event.data);
        heard(kind, data);
        if (kind === "end") { source.close(); resolve(data); }
      });
    }
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) {
        const data = { state: "failed", error: "the connection to the server is lost" };
        heard("end", data);
        resolve(data);
      }
    });
  });
}

// The values of a map at the size of the model's input; `what` is "", "layer=3" or "share=1".
export async function values(job, index, what = "") {
  const answer = await fetch(`/api/jobs/${job}/maps/${index}/values${what && `?${what}`}`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return new Float32Array(await answer.arrayBuffer());
}

export async function pixels(address, [height, width]) {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

// The label of each cell, as a segmentation gives it.
export async function labels(job) {
  const answer = await fetch(`/api/jobs/${job}/labels`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return new Int16Array(await answer.arrayBuffer());
}
