import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
import { allowedBurst } from '/tmp/rv/rev/build/test/instances/spacing.js'
function worst(times,rate){let best=-1e9,f,t,low,lf;times.forEach((x,i)=>{const v=i-rate*x;if(lf===undefined||v<low){low=v;lf=x}const e=v+1-low;if(e>best){best=e;f=lf;t=x}});return{w:+best.toFixed(2),from:f,to:t,count:times.filter(x=>x>=f&&x<=t).length}}
for(const r of [200,1000]) for(const down of [150,200,250,300,330,360,400,450,600]) { let viol=0,m={w:-1}
 for(let k=0;k<6;k++){ const at=4037+k*21
  const s=await simulate({stack:[limits(r,r*20,'everyone')],count:4,seed:1,sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'saturated',depth:Math.ceil(r/8)}}))})
  await s.run(at);for(const c of s.connections)c.down=true;await s.run(at+down);for(const c of s.connections)c.down=false;await s.run(at+5000)
  const x=worst(s.releases.map(x=>x.at),r/1000); if(x.w>allowedBurst(r/1000,4))viol++; if(x.w>m.w)m={...x,downFrom:at} }
 console.log({r,down,violations:viol+' of 6',worst:JSON.stringify(m),allowed:allowedBurst(r/1000,4)}) }
