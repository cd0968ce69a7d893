# Exact tags: the same commit gives the same image. test/package-image.test.ts runs these steps without Docker.
FROM node:22.23.2-alpine3.23 AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts
# .dockerignore says what is left out.
COPY . .
RUN npm run build
RUN npm prune --omit=dev --ignore-scripts

FROM node:22.23.2-alpine3.23
# Node as process 1 would neither pass on signals nor reap children.
RUN apk add --no-cache tini
WORKDIR /app
ENV NODE_ENV=production
COPY --from=build /app/package.json /app/shaper.config.json /app/LICENSE ./
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/bin ./bin
COPY --from=build /app/dist ./dist
# The user `node`. A number, because runAsNonRoot of Kubernetes wants one.
USER 1000
EXPOSE 8080
# That it accepts is enough: a request would cost somebody's limit and reach the upstream.
HEALTHCHECK --interval=10s --timeout=3s --start-period=2s \
  CMD node -e "require('net').connect(8080, '127.0.0.1').once('connect', () => process.exit(0)).once('error', () => process.exit(1))"
ENTRYPOINT ["/sbin/tini", "--", "node", "bin/shaper.js"]
CMD ["start"]
